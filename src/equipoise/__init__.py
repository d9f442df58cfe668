"""Balance the losses of a multi-task PyTorch model.

Every method is a `Balancer`: an `nn.Module` that turns K losses into one scalar, whose `.backward()` leaves
the method's gradient on every parameter.
"""

from equipoise.balancer import Balancer
from equipoise.diagnostics.diagnosis import Diagnosis, diagnose
from equipoise.diagnostics.monitor import Monitor
from equipoise.gradient.alignedmtl import AlignedMTL
from equipoise.gradient.cagrad import CAGrad
from equipoise.gradient.config import ConFIG
from equipoise.gradient.dbmtl import DBMTL
from equipoise.gradient.dualproj import DualProj
from equipoise.gradient.fairgrad import FairGrad
from equipoise.gradient.graddrop import GradDrop
from equipoise.gradient.gradnorm import GradNorm
from equipoise.gradient.imtlg import IMTLG
from equipoise.gradient.mgda import MGDA
from equipoise.gradient.moco import MoCo
from equipoise.gradient.nashmtl import NashMTL
from equipoise.gradient.pcgrad import PCGrad
from equipoise.gradient.torchjd import TorchJD
from equipoise.gradient.upgrad import UPGrad
from equipoise.ldc.double_loop import DoubleLoopLDC
from equipoise.ldc.router import FeatureRouter
from equipoise.ldc.single_loop import LDC
from equipoise.metrics.delta_m import delta_m, mean_rank
from equipoise.registry import make, methods
from equipoise.weighting.dwa import DWA
from equipoise.weighting.famo import FAMO
from equipoise.weighting.gls import GLS
from equipoise.weighting.go4align import GO4Align
from equipoise.weighting.ls import LS
from equipoise.weighting.rlw import RLW
from equipoise.weighting.si import SI
from equipoise.weighting.stch import STCH
from equipoise.weighting.stl import STL
from equipoise.weighting.uw import UW

__version__ = "0.1.0"

__all__ = [
    "DBMTL",
    "DWA",
    "FAMO",
    "GLS",
    "IMTLG",
    "LDC",
    "LS",
    "MGDA",
    "RLW",
    "SI",
    "STCH",
    "STL",
    "UW",
    "AlignedMTL",
    "Balancer",
    "CAGrad",
    "ConFIG",
    "Diagnosis",
    "DoubleLoopLDC",
    "DualProj",
    "FairGrad",
    "FeatureRouter",
    "GO4Align",
    "GradDrop",
    "GradNorm",
    "MoCo",
    "Monitor",
    "NashMTL",
    "PCGrad",
    "TorchJD",
    "UPGrad",
    "delta_m",
    "diagnose",
    "make",
    "mean_rank",
    "methods",
]
