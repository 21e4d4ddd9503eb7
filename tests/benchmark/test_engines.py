"""Jobs here are one-line programs: what is tested is who runs when, with which share, and what is left behind."""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from codid_lightning.experiments import launchers as engines
from codid_lightning.experiments.launchers import (
    FAILURE,
    Attempt,
    EngineError,
    Job,
    LocalEngine,
    Outcome,
    gpu_shares,
    try_lock,
)

WRITE_SHARE = """
import json, os, sys, time
began = time.time(); time.sleep(0.3)
share = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
open(sys.argv[1], "w").write(json.dumps({**share, "began": began, "ended": time.time()}))
"""


def job(directory: Path, program: str, product: bool = True) -> Job:
    file = directory / "result.json"
    command = (sys.executable, "-S", "-c", program, str(file))
    return Job(directory.name, command, directory, file if product else None)


def states(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.job.name: outcome.state for outcome in outcomes}


def test_processes_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "cores", lambda: 9)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    engine = LocalEngine(jobs=2, devices=())
    outcomes = list(engine.run([job(tmp_path / str(i), WRITE_SHARE) for i in range(3)]))
    shares = [json.loads((tmp_path / str(i) / "result.json").read_text()) for i in range(3)]
    assert states(outcomes) == {"0": "done", "1": "done", "2": "done"}
    assert {(s["OMP_NUM_THREADS"], s["MKL_NUM_THREADS"]) for s in shares} == {("4", "4")}
    assert engine.parallel == 2
    assert most_at_once(shares) <= 2


def test_runs_use_no_more_threads_than_the_user_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [LocalEngine(jobs=jobs, devices=()).threads for jobs in (1, 2, 4)] == [3, 3, 2]


def most_at_once(shares: list[dict]) -> int:
    return max(sum(s["began"] <= moment["began"] < s["ended"] for s in shares) for moment in shares)


@pytest.mark.parametrize(("gpus_per_run", "parallel", "on_one"), [(1.0, 2, 1), (0.5, 4, 2)])
def test_no_gpu_has_more_runs_than_its_shares(tmp_path: Path, gpus_per_run: float, parallel: int, on_one: int) -> None:
    engine = LocalEngine(gpus_per_run=gpus_per_run, devices=["3", "5"])
    list(engine.run([job(tmp_path / str(i), WRITE_SHARE) for i in range(6)]))
    shares = [json.loads((tmp_path / str(i) / "result.json").read_text()) for i in range(6)]
    assert engine.parallel == parallel
    for gpu in ("3", "5"):
        assert 1 <= most_at_once([s for s in shares if s["CUDA_VISIBLE_DEVICES"] == gpu]) <= on_one
    assert {s["CUDA_VISIBLE_DEVICES"] for s in shares} == {"3", "5"}


def test_gpus_are_handed_out_whole_in_parts_or_not_at_all() -> None:
    assert gpu_shares(["0", "1"], 1) == ["0", "1"]
    assert gpu_shares(["0", "1"], 0.3) == ["0", "1"] * 3
    assert gpu_shares(["0", "1", "2"], 2) == ["0,1"]
    assert gpu_shares(["0"], 0) == []
    for impossible in (-1, 1.5, 2):
        with pytest.raises(EngineError, match="gpus_per_run"):
            gpu_shares(["0"], impossible)
    with pytest.raises(EngineError, match="jobs is 0"):
        LocalEngine(jobs=0)


def test_a_failing_job_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    fails = f"import os, sys\nif not os.path.exists({str(mended)!r}): sys.exit('no such thing')\nopen(sys.argv[1], 'w')"
    writes = "import sys; open(sys.argv[1], 'w')"
    jobs = [job(tmp_path / "a", fails), job(tmp_path / "b", writes), job(tmp_path / "c", "pass")]
    outcomes = list(LocalEngine(jobs=1, devices=()).run(jobs))
    assert states(outcomes) == {"a": "failed", "b": "done", "c": "failed"}  # c ends well but brings nothing
    record = json.loads((tmp_path / "a" / FAILURE).read_text())
    assert (record["exit_code"], record["output"]) == (1, "no such thing")
    assert next(o for o in outcomes if o.job.name == "a").error == "no such thing"

    mended.touch()
    again = list(LocalEngine(jobs=1, devices=()).run(jobs[:2]))
    assert states(again) == {"a": "done", "b": "done"}
    assert not (tmp_path / "a" / FAILURE).exists()


def test_a_job_that_runs_elsewhere_is_waited_for(tmp_path: Path) -> None:
    busy = job(tmp_path / "busy", "raise SystemExit('started twice')")
    busy.directory.mkdir()
    lock = try_lock(busy.directory)
    assert lock is not None
    assert Attempt.start(busy, {}) == Outcome(busy, "busy")
    outcomes = LocalEngine(jobs=1, devices=()).run([busy, job(tmp_path / "free", WRITE_SHARE)])
    assert next(outcomes).job.name == "free"
    busy.product.touch()  # the other one finishes
    lock.close()
    assert states(list(outcomes)) == {"busy": "done"}


def test_a_job_outlives_its_killed_starter_and_is_not_started_twice(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    program = f"import sys, time\nopen({str(starts)!r}, 'a').write('x')\ntime.sleep(2)\nopen(sys.argv[1], 'w')"
    orphan = job(tmp_path / "orphan", program)
    starter = multiprocessing.get_context("fork").Process(target=_run, args=(orphan,))
    starter.start()
    while not starts.exists():
        time.sleep(0.05)
    os.kill(starter.pid, signal.SIGKILL)
    starter.join()
    assert not orphan.finished
    assert states(list(LocalEngine(jobs=1, devices=()).run([orphan]))) == {"orphan": "done"}
    assert starts.read_text() == "x"


def _run(one: Job) -> None:
    list(LocalEngine(jobs=1, devices=()).run([one]))


def test_whoever_leaves_the_loop_stops_what_runs(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    renames = f"os.rename({str(pid)!r} + '.part', {str(pid)!r})"  # it is seen whole or not at all
    waits = f"import os, time\nopen({str(pid)!r} + '.part', 'w').write(str(os.getpid()))\n{renames}\ntime.sleep(600)"
    quick = f"import os, sys, time\nwhile not os.path.exists({str(pid)!r}): time.sleep(0.1)\nopen(sys.argv[1], 'w')"
    outcomes = LocalEngine(jobs=2, devices=()).run([job(tmp_path / "long", waits), job(tmp_path / "quick", quick)])
    assert next(outcomes).job.name == "quick"
    outcomes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
