"""Where a sweep's trials are kept: a database whose tables others are making, one that does not answer, PostgreSQL."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from equipoise.runs import tune as module

URL = os.environ.get("EQUIPOISE_TEST_POSTGRESQL")  # of a database this may write to
SWEEP = ["sweep", "qm9-sample", "--trials", "3", "--seeds", "0", "--set", "epochs=1", "--set", "batch_size=200"]
SWEEP += ["--set", 'suite.tasks=["mu","r2"]']


def test_tables_that_another_process_makes_are_waited_for(monkeypatch):
    import optuna
    from sqlalchemy.exc import IntegrityError

    opened = []

    def storage(url):
        opened.append(url)
        if len(opened) < 3:
            raise IntegrityError("CREATE TYPE studydirection", None, Exception("it exists"))
        return "the storage"

    monkeypatch.setattr(optuna.storages, "RDBStorage", storage)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    assert module._open("sqlite:///x.db") == "the storage"
    opened.clear()
    with pytest.raises(IntegrityError):
        module._open("sqlite:///x.db", attempts=2)


def test_a_database_that_does_not_open_is_said(tmp_path):
    with pytest.raises(ValueError, match="--storage: the database cannot be opened: unable to open database file"):
        module._open(f"sqlite:///{tmp_path}/no folder/x.db")


@pytest.mark.slow  # a minute or two
@pytest.mark.skipif(
    URL is None, reason="needs a PostgreSQL database: EQUIPOISE_TEST_POSTGRESQL=postgresql+psycopg://..."
)
def test_sweeps_in_postgresql(tmp_path):
    """Two sweeps at once in one database; one that is killed goes on and ends like them; done, it is not done again."""

    def start(folder):
        words = [*SWEEP, "--out", str(tmp_path / folder), "--storage", URL]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([sys.executable, "-m", "equipoise", *words], **pipes)

    def end(sweep):
        text = sweep.communicate()[0]
        assert sweep.returncode == 0, text
        return re.findall(r"│ (0\.\d+) +│ +([\d.]+) │ +([\d.]+) │", text), text.count("✓")

    both = [start("one"), start("two")]
    killed = start("three")
    runs = tmp_path / "three" / "qm9-sample"
    while killed.poll() is None and not list(runs.rglob("steps.csv")):
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (one, ran), (two, _) = map(end, both)
    assert ran == len(one) == 3
    assert one == two
    assert end(start("three"))[0] == one
    assert end(start("one")) == (one, 0)
