"""The toy problem's figure: where each method went, in the plane and on the way to the Pareto front."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence

import torch
from markupsafe import Markup

from equipoise.report import svg
from equipoise.report.charts import Bar
from equipoise.report.colours import colours
from equipoise.report.page import render_page
from equipoise.report.svg import Axis
from equipoise.report.tables import Cell, Column, Line, Table, display_name
from equipoise.suites.toy.problem import STARTS, Sign, pareto_front, toy_losses
from equipoise.suites.toy.starts import NEAR, Trajectories

_SIDE, _LEFT, _BOTTOM, _TOP = 360, 40, 34, 22
_SEEN = 0.6  # how far apart two points of a line are at the least, of a figure 360 wide
_REACH = 11.0  # the plane is shown from minus this to this
_DOT = Markup('<circle class="start" cx="{}" cy="{}" r="3.5"/>')
_STAR = Markup('<path class="star" style="--m:{}" transform="translate({} {})" d="{}"><title>{}</title></path>')
_FIVE = "M0-7L1.7-2.3 6.7-2.2 2.7.9 4.1 5.7 0 2.8-4.1 5.7-2.7.9-6.7-2.2-1.7-2.3Z"
_WAY = Markup('<path class="{}" style="--m:{}" d="{}"/>')
_IMAGE = Markup('<image href="{}" x="{}" y="{}" width="{}" height="{}" preserveAspectRatio="none"/>')


def toy_table(runs: Mapping[str, Trajectories], failed: Mapping[str, str]) -> Table:
    """From how many starts each method reached the balanced middle, how far apart it left the losses, its time."""
    columns = [Column("reached", "starts that reach the middle", "higher", 0)]
    columns += [Column("gap", "mean gap of the scaled losses", "lower", 2)]
    base = next((run for label, run in runs.items() if run.method == "ls"), None)
    columns += [Column("time", "time / LS" if base else "ms / step", "lower", 2)]
    unit = base.seconds if base else next(iter(runs.values())).steps / 1000
    lines = [
        Line(
            _name(label),
            {
                "reached": Cell(sum(run.reached)),
                "gap": Cell(float((run.losses[-1] * torch.tensor([10.0, 1.0])).diff().abs().mean())),
                "time": Cell(run.seconds / unit),
            },
            "ours",
        )
        for label, run in runs.items()
    ]
    notes = [
        f"The middle is (0, -8.36): both losses, their scales divided out, are equally far from their best. "
        f"A start reaches it whose end is nearer than {NEAR:g}.",
        "Time is the processor's, for all five starts together.",
        "Normalising by the first losses cannot work here, where they are 0 at one start and negative at another: "
        "LDC takes fixed scales (0.1, 1).",
        "At (0, 0) torch.clamp passes the gradient of both gates; with a relu that start would never leave.",
        *_router_note(runs),
        *(f"{_name(label)} cannot run here: {why}" for label, why in failed.items()),
    ]
    return Table(f"The toy problem, {next(iter(runs.values())).steps} steps", columns, lines, notes)


def _router_note(runs: Mapping[str, Trajectories]) -> list[str]:
    """Whether LDC needs its router here, if it ran with and without."""
    if not {"ldc", "ldc-no-router"} <= runs.keys():
        return []
    reached, alone = (sum(runs[label].reached) for label in ("ldc", "ldc-no-router"))
    if reached == alone == len(STARTS):
        return ["LDC reaches the middle from every start without a router too: here the gap term alone does it."]
    if reached == len(STARTS):
        return ["Without a router LDC does not reach the middle from every start."]
    return [
        f"Without a router LDC is equal weights and the gap term: so it reaches the middle from {alone} of "
        f"{len(STARTS)} starts, with its router from {reached}."
    ]


def toy_page(runs: Mapping[str, Trajectories], failed: Mapping[str, str], sign: Sign) -> str:
    """The self-contained page."""
    steps = next(iter(runs.values())).steps
    chosen = colours([_name(label) for label in runs])
    return render_page(
        "toy.html.j2",
        [("main", index, colour) for index, colour in enumerate(chosen)],
        title="toy",
        steps=steps,
        sign=sign,
        table=toy_table(runs, failed),
        starts=STARTS,
        ends=[(_name(label), run.points[-1].tolist(), run.reached) for label, run in runs.items()],
        bars_of_time=time_bars(runs),
        figures=[(_name(label), plane(run, sign), front(run)) for label, run in runs.items()],
    )


def _name(label: str) -> str:
    return "LDC without a router" if label == "ldc-no-router" else display_name(label)


def time_bars(runs: Mapping[str, Trajectories]) -> list[Bar]:
    """The seconds of each method, over those of LS where it ran."""
    base = next((run.seconds for run in runs.values() if run.method == "ls"), None)
    return [
        Bar(
            _name(label),
            index,
            run.seconds,
            (f"{run.seconds / base:.2f} × LS, " if base else "") + f"{run.seconds:.3g} s",
        )
        for index, (label, run) in enumerate(runs.items())
    ]


def plane(run: Trajectories, sign: Sign) -> Markup:
    """The ways through the plane, over the mean of the scaled losses; the Pareto set is the thick line."""
    x = Axis([-_REACH, _REACH], _LEFT, _SIDE - 8, room=0.0)
    y = Axis([-_REACH, _REACH], _SIDE - _BOTTOM, _TOP, room=0.0)
    optimal, _ = pareto_front(60)
    width, height = _SIDE - 8 - _LEFT, _SIDE - _BOTTOM - _TOP
    parts = [
        _IMAGE.format(_field(sign), _LEFT, _TOP, width, height),
        svg.frame(x, y, "x1", "x2", left=_LEFT, right=_SIDE - 8, top=_TOP, bottom=_SIDE - _BOTTOM),
        _WAY.format("front", "var(--ink)", _path(optimal.tolist(), x, y)),
    ]
    return svg.figure([*parts, *_ways(run.points.tolist(), x, y)], "ways through the plane", _SIDE, _SIDE)


def front(run: Trajectories) -> Markup:
    """The same ways as losses, with the Pareto front."""
    _, best = pareto_front(100)
    losses = run.losses.tolist()
    every = [point for step in losses for point in step] + best.tolist()
    x = Axis([point[0] for point in every], _LEFT, _SIDE - 8)
    y = Axis([point[1] for point in every], _SIDE - _BOTTOM, _TOP)
    parts = [
        svg.frame(x, y, "first loss", "second loss", left=_LEFT, right=_SIDE - 8, top=_TOP, bottom=_SIDE - _BOTTOM),
        _WAY.format("front", "var(--ink)", _path(best.tolist(), x, y)),
    ]
    return svg.figure([*parts, *_ways(losses, x, y)], "losses and the Pareto front", _SIDE, _SIDE)


def _ways(steps: Sequence[Sequence[Sequence[float]]], x: Axis, y: Axis) -> list[Markup]:
    parts = []
    for start in range(len(steps[0])):
        way = [step[start] for step in steps]
        parts.append(_WAY.format("line", svg.task_colour(start), _path(way, x, y)))
        parts.append(_DOT.format(x(way[0][0]), y(way[0][1])))
    for start in range(len(steps[0])):
        end = steps[-1][start]
        title = f"from start {start + 1} to {end[0]:.2f}, {end[1]:.2f}"
        parts.append(_STAR.format(svg.task_colour(start), x(end[0]), y(end[1]), _FIVE, title))
    return parts


def _path(points: Sequence[Sequence[float]], x: Axis, y: Axis) -> str:
    """The line through the points, without those that nobody could tell from the one before."""
    kept = [(x(points[0][0]), y(points[0][1]))]
    for a, b in points[1:]:
        here = x(a), y(b)
        if math.dist(here, kept[-1]) > _SEEN:
            kept.append(here)
    return "M" + "L".join(f"{a} {b}" for a, b in kept)


def _field(sign: Sign, side: int = 160) -> str:
    """The mean of the scaled losses over the plane as a picture, darker where it is lower; an opaque-free grey."""
    from PIL import Image

    line = torch.linspace(-_REACH, _REACH, side)
    points = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1).flip(0)
    mean = (toy_losses(points, sign) * torch.tensor([10.0, 1.0])).mean(-1)
    level = ((mean.max() - mean) / (mean.max() - mean.min())).clamp(0, 1)
    grey = torch.full_like(level, 128).to(torch.uint8)
    alpha = ((level * 10).floor() / 10 * 130).to(torch.uint8)  # in ten steps, like contour lines
    image = Image.merge("LA", [Image.fromarray(part.numpy()) for part in (grey, alpha)])
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
