"""Small diagrams as inline svg. Names go through `Markup.format`, which escapes them; colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from equipoise.report.charts import Curve, Heat, Panel, Spread
from equipoise.report.render import number
from equipoise.report.tradeoff import Point, Scatter

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 8, 32
_GRID_X = Markup(
    '<line class="grid" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/><text class="tick mid" x="{0}" y="{3}">{4}</text>'
)
_GRID_Y = Markup(
    '<line class="grid" x1="{1}" x2="{2}" y1="{0}" y2="{0}"/><text class="tick end" x="{3}" y="{4}">{5}</text>'
)
_TEXT = Markup('<text class="{}" x="{}" y="{}">{}</text>')
_TURNED = Markup('<text class="turned" transform="translate({} {}) rotate(-45)">{}</text>')
_LINE = Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>')
_DOT = Markup('<circle class="dot" cx="{}" cy="{}" r="4.5"><title>{}</title></circle>')
_METHOD = Markup('<g class="m{0}" data-m="{0}">{1}</g>')
_CELL = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" style="--v:{}"><title>{}</title></rect>')
_SMALL = Markup('<circle class="run" cx="{}" cy="{}" r="2"/>')
_PATH = Markup('<path class="{}" {} d="{}" data-name="{}"/>')
_WAY = Markup('<path class="{}" d="{}"/>')
_LETTER = 5.6  # about the width of a letter of a label
NOTHING = Markup("")
HUES = 137.508  # the golden angle: neighbours in a long list of tasks differ most


class Axis:
    """From values to places on the paper, with ticks at round numbers."""

    def __init__(
        self,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        whole: bool = False,
        room: float = 0.04,
    ) -> None:
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        self.log, self.whole = log, whole
        low, high = (math.log10(min(finite)), math.log10(max(finite))) if log else (min(finite), max(finite))
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
        room = room * (high - low)
        self.low, self.high, self.start, self.end = low - room, high + room, start, end

    def __call__(self, value: float) -> float:
        place = math.log10(value) if self.log and value > 0 else value
        if self.log and value <= 0:
            place = self.low
        return round(self.start + (place - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    @property
    def scale(self) -> str:
        """What the page's script needs to turn a place back into a value."""
        return f"{self.start:g} {self.end:g} {self.low:.9g} {self.high:.9g} {int(self.log)}"

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Places and labels."""
        if self.log and self.high - self.low > 1:
            first, last = math.ceil(self.low), math.floor(self.high)
            stride = max(1, math.ceil((last - first + 1) / most))
            return [(self(10.0**power), _power(power)) for power in range(first, last + 1, stride)]
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        step = max(_nice((high - low) / most), 1.0 if self.whole else 0.0)
        values = [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
        return [(self(value), _label(value, step)) for value in values]


def panel(data: Panel, *, tasks: bool = False) -> Markup:
    """Lines over steps or epochs; with `tasks` the colours are those of a list of tasks, else of the methods."""
    x = Axis([v for curve in data.curves for v in curve.x], LEFT, WIDTH - RIGHT, whole=True)
    ends = [v for curve in data.curves for line in (curve.y, curve.low or [], curve.high or []) for v in line]
    y = Axis(ends, HEIGHT - BOTTOM, TOP, log=data.log_y)
    parts = [frame(x, y, data.x_label)]
    for curve in data.curves:
        if curve.low is not None and curve.high is not None:
            there = [*zip(curve.x, curve.high, strict=True)]
            back = [*zip(curve.x, curve.low, strict=True)][::-1]
            parts.append(_shape("band", curve, _path([*there, *back], x, y) + "Z", tasks))
        path = _path(list(zip(curve.x, curve.y, strict=True)), x, y)
        if len(curve.x) == 1:
            path += "h.1"  # a single epoch still shows as a dot
        parts.append(_shape("line", curve, path, tasks))
    scales = Markup(' data-x="{}" data-y="{}" data-of="{}"').format(x.scale, y.scale, data.x_label)
    return figure(parts, data.title, more=scales)


def spread(data: Sequence[Spread]) -> Markup:
    """For each method a row: a dot a task, a bar from smallest to largest, a tick at the mean; long names above it."""
    above = max(len(row.name) for row in data) > 13
    row_height, left = (40, 24) if above else (30, 96)
    height = row_height * len(data) + BOTTOM + TOP
    values = [value for row in data for value in row.values.values()]
    log = min(values) > 0 and max(values) / min(values) > 20
    x = Axis(values, left, WIDTH - RIGHT, log=log)
    parts = [_x_axis(x, "training loss of each task, last epoch", WIDTH - RIGHT, TOP, height - BOTTOM)]
    for place, row in enumerate(data):
        y = TOP + row_height * place + (28 if above else 15)
        facts = row.statistics
        mean = x(facts["mean"])
        marks = [_TEXT.format("over", left - 14, y - 13, cut(row.name, 56))] if above else []
        marks += [] if above else [_TEXT.format("name", left - 8, y + 4, row.name)]
        marks.append(_LINE.format("range", x(facts["min"]), x(facts["max"]), y, y))
        marks += [_DOT.format(x(value), y, f"{task}: {number(value, 4)}") for task, value in row.values.items()]
        marks.append(_LINE.format("mean", mean, mean, y - 9, y + 9))
        parts.append(_METHOD.format(row.index, NOTHING.join(marks)))
    return figure(parts, "Loss discrepancy", height=height)


def heat(data: Heat) -> Markup:
    """A square of cosines, blue for agreement and red for conflict, the numbers in it where there is room."""
    side, left, top = len(data.tasks), 80, 60
    cell = min(52.0, (WIDTH - left - RIGHT) / side)
    parts = []
    for i, task in enumerate(data.tasks):
        middle = round((i + 0.5) * cell, 1)
        if cell > 9:
            parts.append(_TEXT.format("name", left - 6, top + middle + 4, cut(task, 11)))
            parts.append(_TURNED.format(left + middle, top - 6, cut(task, 11)))
    for i, row in enumerate(data.cosine):
        for j, value in enumerate(row):
            x, y, size = round(left + j * cell, 1), round(top + i * cell, 1), round(cell - min(1.0, cell / 8), 1)
            strength = 0 if math.isnan(value) else min(100, round(100 * abs(value)))
            title = f"{data.tasks[i]} and {data.tasks[j]}: {number(value, 3)}"
            parts.append(_CELL.format("with" if value >= 0 else "against", x, y, size, size, strength, title))
            if cell > 24 and i != j:
                middle_x, middle_y = round(x + size / 2, 1), round(y + size / 2 + 4, 1)
                text = "—" if math.isnan(value) else f"{value:.2f}".replace("0.", ".")
                parts.append(_TEXT.format("cell strong" if strength > 60 else "cell", middle_x, middle_y, text))
    return figure(parts, data.name, height=round(top + side * cell + 4))


def scatter(data: Scatter) -> Markup:
    """Two metrics against each other: a dot a row, a small one a run, a thin line through each sweep."""
    height = 300
    every = [point for dot in data.dots for point in [(dot.x, dot.y), *dot.runs]]
    x = Axis([point[0] for point in every], LEFT, WIDTH - RIGHT, room=0.09)
    y = Axis([point[1] for point in every], height - BOTTOM, TOP + 16, room=0.09)
    parts = [frame(x, y, data.x_label, data.y_label, top=TOP + 16, bottom=height - BOTTOM)]
    parts.append(_WAY.format("stairs", _path(data.front, x, y)))
    parts += [_WAY.format("sweep", _path(sweep, x, y)) for sweep in data.sweeps]
    boxes = [(x(dot.x) - 5, y(dot.y) - 5, x(dot.x) + 5, y(dot.y) + 5) for dot in data.dots]
    for dot in data.dots:
        marks = [_SMALL.format(x(a), y(b)) for a, b in dot.runs]
        title = f"{dot.name}: {number(dot.x, 4)}, {number(dot.y, 4)}"
        marks += [_DOT.format(x(dot.x), y(dot.y), title), _label_beside(cut(dot.label, 22), x(dot.x), y(dot.y), boxes)]
        parts.append(_METHOD.format(dot.index, NOTHING.join(marks)))
    return figure(parts, f"{data.x_label} against {data.y_label}", height=height)


def _label_beside(text: str, x: float, y: float, boxes: list[tuple[float, float, float, float]]) -> Markup:
    """The label right of its dot, or where else it covers nothing drawn before; none where there is no room."""
    wide = _LETTER * len(text)
    places = [(x + 7, y + 4), (x - 7 - wide, y + 4), (x - wide / 2, y - 8), (x - wide / 2, y + 16)]
    for left, base in places:
        box = (left, base - 9, left + wide, base + 2)
        inside = box[0] > LEFT and box[2] < WIDTH and box[1] > TOP
        if inside and not any(_overlap(box, other) for other in boxes):
            boxes.append(box)
            return _TEXT.format("beside", round(left, 1), round(base, 1), text)
    return NOTHING


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def task_colour(index: int) -> str:
    """The colour of a task in a list of any length."""
    return f"hsl({round(index * HUES + 210) % 360} 62% 52%)"


def figure(
    parts: Sequence[Markup], title: str, width: int = WIDTH, height: int = HEIGHT, more: Markup = NOTHING
) -> Markup:
    """The svg element around its parts; `more` are attributes for the page's script."""
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}"{}>{}</svg>').format(
        width, height, title, more, NOTHING.join(parts)
    )


def frame(
    x: Axis, y: Axis, x_label: str, y_label: str = "", *, left: float = LEFT, right: float = WIDTH - RIGHT,
    top: float = TOP, bottom: float = HEIGHT - BOTTOM,
) -> Markup:  # fmt: skip
    """Grid, ticks and names of both axes."""
    lines = [_GRID_Y.format(place, left, right, left - 6, round(place + 3.5, 1), label) for place, label in y.ticks()]
    if y_label:
        lines.append(_TEXT.format("label", 4, top - 10, y_label))
    return NOTHING.join([*lines, _x_axis(x, x_label, right, top, bottom)])


def _x_axis(x: Axis, label: str, right: float, top: float, bottom: float) -> Markup:
    ticks = [_GRID_X.format(place, top, bottom, bottom + 13, text) for place, text in x.ticks()]
    return NOTHING.join([*ticks, _TEXT.format("label end", right, bottom + 26, label)])


def _shape(kind: str, curve: Curve, path: str, tasks: bool) -> Markup:
    if tasks:
        return _PATH.format(kind, Markup('style="--m:{}"').format(task_colour(curve.index)), path, curve.name)
    return _PATH.format(f"{kind} m{curve.index}", Markup('data-m="{}"').format(curve.index), path, curve.name)


def _path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    finite = [(a, b) for a, b in points if math.isfinite(b)]
    return "M" + "L".join(f"{x(a)} {y(b)}" for a, b in finite) if finite else "M0 0"


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * step)


def _label(value: float, step: float) -> str:
    if value != 0 and (abs(value) >= 1e5 or step < 1e-4):
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:.{digits}f}"


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 4 else f"1e{power}"


def cut(text: str, most: int) -> str:
    """The name, shortened to that many letters.

    >>> cut("a long name", 6), cut("short", 6)
    ('a lon…', 'short')
    """
    return text if len(text) <= most else text[: most - 1] + "…"
