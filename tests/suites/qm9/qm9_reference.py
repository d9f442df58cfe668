"""The published network the slow way, on edge lists: written out with loops, and built of PyTorch Geometric's parts."""

import numpy as np
import torch
from torch import nn

from equipoise.suites.qm9.dense import Resident, plan_layout
from equipoise.suites.qm9.model import Network
from equipoise.suites.qm9.perception import Perception


def dense_batch(molecules, chosen, groups=4):
    """What the network under test takes: some molecules, their targets standardised over all."""
    targets = (molecules.targets() - molecules.targets().mean(0)) / molecules.targets().std(0)
    resident = Resident(molecules, targets[None], "cpu")
    layout = plan_layout(resident.sizes[chosen][None], groups)
    return resident.gather(torch.from_numpy(chosen)[None], layout)


def network():
    """The network under test."""
    torch.manual_seed(3)
    net = Network()
    with torch.no_grad():
        net.conv.bias.uniform_(-0.1, 0.1)  # zeros would hide a missing bias
    return net


def gradients(net, predictions, targets):
    """Of the summed losses, by parameter."""
    losses = (predictions - targets).square().mean(0)
    names = [name for name, _ in net.named_parameters()]
    return dict(zip(names, torch.autograd.grad(losses.sum(), net.parameters()), strict=True))


def graph(molecules, m):
    """Node features, edges (from, to) and the five edge features of one molecule's complete graph."""
    atoms = slice(molecules.atom_offset[m], molecules.atom_offset[m + 1])
    nodes = torch.from_numpy(molecules.features()[atoms])
    position = torch.from_numpy(molecules.position[atoms])
    bonds = slice(molecules.bond_offset[m], molecules.bond_offset[m + 1])
    order = {}
    for (i, j), kind in zip(molecules.bond[bonds].tolist(), molecules.bond_classes()[bonds].tolist(), strict=True):
        order[i, j] = order[j, i] = kind
    pairs = [(i, j) for i in range(len(nodes)) for j in range(len(nodes)) if i != j]
    edges = torch.zeros(len(pairs), 5)
    for row, (i, j) in enumerate(pairs):
        if (i, j) in order:
            edges[row, order[i, j] - 1] = 1
        edges[row, 4] = (position[i] - position[j]).norm()
    return nodes, torch.tensor(pairs).T, edges


def slow_forward(p, molecules, chosen):
    """Predictions and features, one molecule and one edge at a time; `p` holds the published parameters by name."""
    shared = []
    for m in chosen:
        nodes, (source, target), edges = graph(molecules, m)
        state = torch.relu(nodes @ p["lin0.weight"].T + p["lin0.bias"])
        hidden = torch.relu(edges @ p["conv.nn.0.weight"].T + p["conv.nn.0.bias"])
        matrix = (hidden @ p["conv.nn.2.weight"].T + p["conv.nn.2.bias"]).view(-1, 64, 64)
        for _ in range(3):
            received = [[] for _ in nodes]
            for edge in range(len(edges)):
                received[target[edge]].append(state[source[edge]] @ matrix[edge])
            mean = torch.stack([torch.stack(r).mean(0) for r in received])
            message = torch.relu(mean + state @ p["conv.lin.weight"].T + p["conv.bias"])
            state = gru_cell(message, state, p)
        shared.append(torch.relu(set_to_set(state, p) @ p["lin1.weight"].T + p["lin1.bias"]))
    shared = torch.stack(shared)
    tasks = sum(name.startswith("heads") for name in p) // 2
    heads = [shared @ p[f"heads.{k}.weight"].T + p[f"heads.{k}.bias"] for k in range(tasks)]
    return torch.cat(heads, dim=1), shared


def gru_cell(x, h, p):
    gates_x = x @ p["gru.weight_ih_l0"].T + p["gru.bias_ih_l0"]
    gates_h = h @ p["gru.weight_hh_l0"].T + p["gru.bias_hh_l0"]
    reset = torch.sigmoid(gates_x[:, :64] + gates_h[:, :64])
    update = torch.sigmoid(gates_x[:, 64:128] + gates_h[:, 64:128])
    new = torch.tanh(gates_x[:, 128:] + reset * gates_h[:, 128:])
    return (1 - update) * new + update * h


def set_to_set(atoms, p):
    h, c, star = torch.zeros(64), torch.zeros(64), torch.zeros(128)
    for _ in range(3):
        gates = p["set2set.lstm.weight_ih_l0"] @ star + p["set2set.lstm.bias_ih_l0"]
        gates = gates + p["set2set.lstm.weight_hh_l0"] @ h + p["set2set.lstm.bias_hh_l0"]
        enter, forget, new, leave = gates.split(64)
        c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
        h = torch.sigmoid(leave) * torch.tanh(c)
        attention = torch.softmax(atoms @ h, dim=0)
        star = torch.cat([h, attention @ atoms])
    return star


def pyg_batch(molecules, chosen):
    """PyTorch Geometric's batch of the molecules, through its own Complete-like graph and its `Distance`."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.transforms import Distance

    graphs = []
    for m in chosen:
        nodes, index, edges = graph(molecules, m)
        atoms = slice(molecules.atom_offset[m], molecules.atom_offset[m + 1])
        data = Data(
            x=nodes, edge_index=index, edge_attr=edges[:, :4], pos=torch.from_numpy(molecules.position[atoms]).clone()
        )
        graphs.append(Distance(norm=False)(data))
    return Batch.from_data_list(graphs)


def pyg_network(tasks=11):
    """The network of the published code, of PyTorch Geometric's modules; takes our state_dict as it is."""
    from torch_geometric.nn import NNConv, Set2Set

    class Published(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin0 = nn.Linear(11, 64)
            edge = nn.Sequential(nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 64 * 64))
            self.conv = NNConv(64, 64, edge, aggr="mean")
            self.gru = nn.GRU(64, 64)
            self.set2set = Set2Set(64, processing_steps=3)
            self.lin1 = nn.Linear(128, 64)
            self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(tasks))

        def forward(self, data):
            out = torch.relu(self.lin0(data.x))
            h = out.unsqueeze(0)
            for _ in range(3):
                m = torch.relu(self.conv(out, data.edge_index, data.edge_attr))
                out, h = self.gru(m.unsqueeze(0), h)
                out = out.squeeze(0)
            shared = torch.relu(self.lin1(self.set2set(out, data.batch)))
            return torch.cat([head(shared) for head in self.heads], dim=1), shared

    return Published()


def relative(left, right):
    """The largest difference over the largest entry."""
    left, right = left.detach(), right.detach()
    return float((left - right).abs().max() / right.abs().max().clamp(min=1e-30))


def sorted_rows(molecules, chosen):
    return np.asarray(chosen)[np.argsort(molecules.atoms[chosen], kind="stable")]


def made_up(molecules, seed=0):
    """An answer about the molecules that RDKit would not give: for what does not depend on chemistry."""
    rng = np.random.RandomState(seed)
    heavy = molecules.number > 1
    codes = rng.randint(1, 4, len(heavy)) * heavy
    return Perception(rng.rand(len(heavy)) < 0.5, codes.astype(np.uint8), rng.rand(len(molecules.order)) < 0.3)
