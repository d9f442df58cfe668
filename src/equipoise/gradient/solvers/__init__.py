"""The K x K problems of the gradient methods: from the Gram matrix of the task gradients to weights.

Everything here works in float64 on matrices of the size of the number of tasks, divides the scale of the
gradients out first, runs a bounded number of iterations and says how far from its own equations it ended.
On the CPU an iteration stops when it has converged; on a GPU it runs its full count, so that nothing waits
for the device.
"""

from equipoise.gradient.solvers.cagrad import cagrad
from equipoise.gradient.solvers.common import Solution
from equipoise.gradient.solvers.dual_cone import dual_cone
from equipoise.gradient.solvers.equal_projections import equal_projections
from equipoise.gradient.solvers.fair import fair
from equipoise.gradient.solvers.min_norm import min_norm
from equipoise.gradient.solvers.spectral import aligned, equal_cosines

__all__ = ["Solution", "aligned", "cagrad", "dual_cone", "equal_cosines", "equal_projections", "fair", "min_norm"]
