"""results/qm9.csv and results/qm9.md from the stored run folders and measurements; nothing in them is typed by hand.

    python benchmarks/qm9_table.py

Reads results/runs (folders as `equipoise run` and benchmarks/qm9_train.py leave them), results/qm9-time.json and
results/qm9-check.json. Rows of the paper stand beside ours, each delta-m computed from the row's own errors.
"""

import csv
import io
import json
import re
import statistics
from pathlib import Path

from equipoise.metrics.delta_m import mean_rank
from equipoise.report.collect import collect
from equipoise.suites.qm9.suite import QM9

RESULTS = Path(__file__).parent.parent / "results"
METRICS = [metric.name for metric in QM9.metrics]
PLAN = ("ls", "si", "ldc", "ldc:router_objective=upper", "uw", "fairgrad")  # whose fleets were timed
WANTED = ("ls", "si", "uw", "famo", "go4align", "fairgrad", "mgda", "ldc")  # of our own, 300 epochs each


def main():
    comparison = read()
    (RESULTS / "qm9.csv").write_text(csv_of(comparison))
    (RESULTS / "qm9.md").write_text(page_of(comparison))


def read(results=RESULTS):
    """The stored runs of QM9."""
    return next(each for each in collect([results / "runs"]) if each.suite is QM9)


def rows_of(comparison, results=RESULTS):
    """A dictionary a row, ours before the paper's."""
    for row in comparison.rows:
        for entry in row.entries:
            run = entry.runs[0]
            together = run.result.get("runs_in_step", 1)
            own = comparison.stl and comparison.delta_m(entry.metrics, comparison.stl, by_task=False)
            yield {
                "method": row.label, "seed": entry.seed, "source": "own", "epochs": len(run.metrics),
                "preset": " ".join(f"{k}={v}" for k, v in run.config.options.items()), **entry.metrics,
                "delta_m": comparison.delta_m(entry.metrics, QM9.stl, by_task=False), "delta_m_own_stl": own,
                "s_per_step": entry.seconds_per_step / together, "run_folder": run.path.relative_to(results).as_posix(),
            }  # fmt: skip
    for method, row in QM9.published.items():
        errors = {name: row[name] for name in METRICS}
        found = comparison.delta_m(errors, QM9.stl, by_task=False)
        yield {"method": method, "source": "published", "epochs": QM9.protocol.epochs, **errors, "delta_m": found}


def csv_of(comparison, results=RESULTS):
    columns = ["method", "seed", "source", "epochs", "preset", *METRICS]
    columns += ["delta_m", "delta_m_own_stl", "s_per_step", "run_folder"]
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows_of(comparison, results):
        writer.writerow({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()})
    return file.getvalue()


def page_of(comparison, results=RESULTS):
    rows = list(rows_of(comparison, results))
    parts = ["# QM9: results", standing(rows), errors_table(rows), speed(results), precision(results)]
    return "\n\n".join(parts) + "\n"


def standing(rows):
    """How LDC-MTL does among our own rows, or that there is no such row; and what else is missing."""
    own = by_method([row for row in rows if row["source"] == "own"])
    means = {method: statistics.fmean(row["delta_m"] for row in group) for method, group in own.items()}
    ldc = {method: value for method, value in means.items() if method.startswith("ldc")}
    if not ldc:
        first = (
            "LDC-MTL has not been trained here to the end, so nothing is known yet of whether it wins or loses on QM9: "
            f"of our own there {'is one row' if len(own) == 1 else f'are {len(own)} rows'} ({', '.join(own)})."
        )
    else:
        name, best = min(means, key=means.get), min(ldc, key=ldc.get)
        lead = ldc[best] - means[name]
        first = f"LDC-MTL ({best}) reaches delta-m {ldc[best]:.1f}"
        rest = (
            ", the best of our own rows." if lead == 0 else f" and loses by {lead:.1f} to {name} ({means[name]:.1f})."
        )
        first += rest
    missing = [method for method in WANTED if method not in own]
    more = f" Not trained here yet: {', '.join(missing)}, single tasks, further seeds." if missing else ""
    told = []
    for method, group in own.items():
        if method in QM9.published:
            theirs = next(row["delta_m"] for row in rows if row["source"] == "published" and row["method"] == method)
            told.append(
                f"{method}: {means[method]:.1f} ({len(group)} seed{'s' * (len(group) > 1)}), "
                f"the paper's row {theirs:.1f}."
            )
    return "\n\n".join([first + more, *told])


def by_method(rows):
    found = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return found


def errors_table(rows):
    """Mean absolute errors, delta-m and mean rank, ours and the paper's apart."""
    units = {metric.name: metric.unit for metric in QM9.metrics}
    digits = {metric.name: metric.digits for metric in QM9.metrics}
    head = ["method", "source", "seeds", "epochs", *(f"{name} ({units[name]})" for name in METRICS)]
    head += ["delta-m", "printed", "mean rank", "ms a step"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for source in ("own", "published"):
        groups = by_method([row for row in rows if row["source"] == source])
        errors = {m: {n: statistics.fmean(row[n] for row in g) for n in METRICS} for m, g in groups.items()}
        ranks = mean_rank(errors) if len(errors) > 1 else {}
        for method, group in groups.items():
            seconds = [row["s_per_step"] for row in group if "s_per_step" in row]
            cells = [method, source, str(len(group)) if source == "own" else "3", str(group[0]["epochs"])]
            cells += [f"{errors[method][name]:.{digits[name]}f}" for name in METRICS]
            cells.append(f"{statistics.fmean(row['delta_m'] for row in group):.1f}")
            cells.append(f"{QM9.published[method]['delta_m']:.1f}" if source == "published" else "")
            cells.append(f"{ranks[method]:.1f}" if ranks else "")
            cells.append(f"{1e3 * statistics.fmean(seconds):.2f}" if seconds else "")
            lines.append("| " + " | ".join(cells) + " |")
    after = (
        "Mean absolute errors on the test molecules at the epoch of the best validation delta-m; lower is better "
        "everywhere. delta-m is computed from the row's errors against the published single-task numbers; `printed` "
        "is what the paper prints. Ranks are among rows of one source. Of R runs trained in one step each is given an "
        "R-th part of its time."
    )
    return "## Errors\n\n" + "\n".join(lines) + "\n\n" + after


def speed(results):
    found = json.loads((results / "qm9-time.json").read_text())
    reference = found["PyTorch Geometric"]
    whole, base = reference["step"] + reference["collation"], found["ls, R=1"]
    lines = ["| step | ms | of ours (ls) | times faster than the reference |", "|---|---:|---:|---:|"]
    lines.append(f"| PyTorch Geometric: step {reference['step']:.2f} + collation {reference['collation']:.2f} "
                 f"| {whole:.2f} | {whole / base:.1f} | 1 |")  # fmt: skip
    for name, ms in found.items():
        if isinstance(ms, float):
            runs = int(name.split("R=")[1].split(",")[0])
            lines.append(f"| {name} | {ms:.2f} | {ms / base:.2f} | {runs * whole / ms:.1f} |")
    for runs, ms in fleets(results).items():
        lines.append(
            f"| the first {runs} of {', '.join(PLAN)} | {ms:.2f} | {ms / base:.2f} | {runs * whole / ms:.1f} |"
        )
    before = (
        f"One {found['device']}, torch {found['torch']}, batch {found['batch']}; `{found['precision']}` where no "
        "precision is named, compiled unless the row says otherwise. Medians, in one process; the fleets of several "
        "methods each in a process of its own, from results/qm9-train.log. R runs in one step count R times."
    )
    return "## Speed\n\n" + before + "\n\n" + "\n".join(lines)


def fleets(results):
    """The last measured step of each fleet, by its number of runs."""
    log = (results / "qm9-train.log").read_text()
    steps = re.findall(r" R=(\d+): step ([\d.]+) ms", log)
    return {runs: ms for runs, ms in sorted((int(runs), float(ms)) for runs, ms in dict(steps).items()) if runs > 1}


def precision(results):
    found = json.loads((results / "qm9-check.json").read_text())["network"]
    lines = ["| arithmetic | predictions | the worst parameter's gradient | which |", "|---|---:|---:|---|"]
    for name, errors in found.items():
        cells = (name, f"{errors['predictions']:.1e}", f"{errors['gradients']:.1e}", f"`{errors['worst']}`")
        lines.append("| " + " | ".join(cells) + " |")
    before = (
        "Relative errors (norms) against PyTorch Geometric's modules in float64, one batch of 120 real molecules, new "
        "weights. `fused` is by the Triton kernels, `products` by plain matrix products. PyTorch Geometric in float32 "
        "runs its GRU and LSTM through cuDNN, which takes tf32 unless told otherwise; that would explain its error."
    )
    return "## Precision\n\n" + before + "\n\n" + "\n".join(lines)


if __name__ == "__main__":
    main()
