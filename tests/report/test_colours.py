"""A method has one colour, wherever it is drawn."""

import re
from importlib.resources import files

from equipoise.report.collect import collect
from equipoise.report.colours import PALETTE, colours
from equipoise.report.page import page
from equipoise.runs.compare import plan
from equipoise.runs.train import train


def test_a_method_has_one_colour_on_a_page():
    """Also where suites were run with other methods; a method of its own colour takes nobody's."""
    names = ["STL", "MGDA", "LS", "PCGrad", "LDC", *(f"LS (weights={n})" for n in range(12))]
    found = dict(zip(names, colours(names), strict=True))
    assert (found["LS"], found["LDC"], found["STL"]) == ((9, 0), (1, 0), (6, 0))
    assert len(set(found.values())) == len(names)  # a second round of colours is dashed
    assert [colour.turn for colour in found.values()] == sorted(colour.turn for colour in found.values())


def test_the_printed_palette_is_the_page_s():
    style = files("equipoise.report").joinpath("page.css").read_text()
    assert re.findall(r"--p\d: (#\w+)", style)[: len(PALETTE)] == list(PALETTE)


def test_sections_with_other_methods_agree(tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder, methods in zip(folders, (["ls", "mgda"], ["mgda", "famo", "ldc"]), strict=True):
        for config in plan("toy", methods, [0], {"epochs": 1, "suite.steps_per_epoch": 2}):
            train(config, folder)
    text = page([*collect(folders[:1]), *collect(folders[1:])])
    rules = dict(re.findall(r"(#suite-\d \.m\d) \{ --m: (var\(--p\d\)); \}", text))
    names = re.findall(r'(m\d)" data-toggle.*</i>MGDA<', text)
    assert len(names) == 2 and len({rules[f"#suite-{i} .{name}"] for i, name in enumerate(names, 1)}) == 1
    assert len(set(rules.values())) == 4
