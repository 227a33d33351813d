"""The W&B runs of trials and of sweeps: what they receive, and the process that has one. Only this file imports wandb.

W&B's calls may block for minutes, or raise, when the network or the service fails. In a process of their own they
cannot delay or end a trial, where a thread writes messages to a pipe, as lines of JSON. The process imports no
Lightning, which would take it seconds.
"""

import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from shlex import join, quote, split
from typing import TYPE_CHECKING, Any

from transformer_pl.runtime.environment import PROJECT, WAITED_FOR, set_wandb_group, why_unreachable
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_text, write_atomically
from transformer_pl.runtime.terminal import counted, plain
from transformer_pl.table.row import ALPHA

if TYPE_CHECKING:
    from transformer_pl.table.formats import Table
    from transformer_pl.trials.result import Result

END_S = 4.5  # seconds that W&B gets at the end of a trial where its server does not answer
SEND_S = 30.0  # seconds that it gets where its server answers, or where the run is offline
MOST_OF_ROW = 60  # characters of a row's name in that of a link
MOST_WAITING = 10_000  # lines of metrics that wait for W&B's process to read them


# ---------------------------------------------------------------------------------------------------------------------
# In the trial


def is_disabled() -> bool:
    """Whether the environment turns W&B off, so that no process needs to be started."""
    return os.environ.get("WANDB_MODE") == "disabled"


class WandbRun:
    """A W&B run, usually of a trial. No method fails when W&B does, and only `finish` waits."""

    def __init__(self, **run: Any):
        """run: the arguments of `_open_run`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._folder, self._dropped = run["folder"], 0
        self._waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # messages; an empty one ends them
        self._writer = threading.Thread(target=self._write, daemon=True)  # which a full pipe may block
        if not is_disabled():
            command, waited_for = [sys.executable, "-m", "transformer_pl.train.wandb_run"], os.environ.get(WAITED_FOR)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                start_new_session=True,  # so that signals reach the trial alone, which then sends `finish`
                pass_fds=[int(waited_for)] if waited_for else [],
            )
            self.send(run=run)
            self._writer.start()

    def send(self, **message: Any) -> None:
        """Send a message of one key: log, summary, translations or report.

        Metrics are dropped while MOST_WAITING messages wait, because W&B's process stands still.
        """
        if "log" in message and self._waiting.qsize() >= MOST_WAITING:
            self._dropped += 1
        elif self._process:
            self._waiting.put(json.dumps(message).encode() + b"\n")

    def _write(self) -> None:
        assert self._process and self._process.stdin
        with suppress(OSError), self._process.stdin as pipe:  # an error: the process has ended
            for line in iter(self._waiting.get, b""):
                pipe.write(line)
                pipe.flush()

    def send_summary(self, result: "Result") -> None:
        """Send what W&B's table of runs shows of a result beside the metrics."""
        shown = {key: getattr(result, key) for key in ("params", "flops", "tokens_per_s", "of_peak", "wall_s")}
        self.send(summary=shown | {"val/loss.fall": result.convergence and result.convergence["fall"]})

    def finish(self, exit_code: int = 0) -> None:
        """End the run. W&B has SEND_S to send the rest, or END_S where its server does not answer.

        A trial of a sweep waits only until all is handed over, because the sweep waits for W&B's process. After an exit
        code other than 0 both wait for END_S at most, and W&B's process goes on alone.
        """
        if not self._process:
            return
        self._process.send_signal(signal.SIGCONT)  # one that was stopped would stay for ever
        self.send(finish=exit_code)
        self._waiting.put(b"")
        seconds = END_S if exit_code else SEND_S + END_S  # it ends itself earlier
        if WAITED_FOR in os.environ:
            self._writer.join(seconds)
        else:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        if self._dropped:
            lacks = f"its process stood still, and lacks {counted(self._dropped, 'line')} of metrics"
            print(plain(f"W&B: {lacks}; nothing is lost in {self._folder}"), flush=True)
        elif self._process.poll():
            print(plain(f"W&B: logging stopped before its end; nothing is lost in {self._folder}"), flush=True)


def sync_command(runs: Path) -> str:
    """How to upload what was kept offline of all trials and reports in a runs folder."""
    return f"wandb sync {quote(str(runs))}/{{trials/*,sweeps/*/report}}/wandb/offline-run-*"


def link_runs(trials: Iterable[Path], links: Path) -> None:
    """Link the newest W&B run of each trial, in place of earlier ones, in one folder, as `wandb leet` needs them.

    Their names begin with the row. trials: their folders. links: the folder, in that of their sweep.
    """
    with suppress(OSError, IndexError):  # a full disk, a file system without links, or a link of the user's
        earlier = {link.readlink().parts[-3]: link for link in links.glob("run-*") if link.is_symlink()}  # by trial
        for trial in trials:
            # leet lists what begins with run-, and reads the id of a run behind run-DATE_TIME- in the name of a folder
            runs = {run.name.removeprefix("offline-"): run for run in trial.glob("wandb/*run-[0-9]*-*")}
            newest, link = max(runs, default=""), earlier.get(trial.name)
            name = f"run-{trial.name.rpartition('-')[0][:MOST_OF_ROW]} {newest}"
            if link and link.name != name:
                link.unlink(missing_ok=True)
            if newest and not (links / name).is_symlink():
                links.mkdir(exist_ok=True)
                with suppress(FileExistsError):  # another process was faster
                    (links / name).symlink_to(os.path.relpath(runs[newest], links))


def send_report(folder: Path, group: str, project: str, table: "Table", plan: dict[str, Any]) -> None:
    """Send a sweep's table, its page and figures as a W&B run of job type `report` in the sweep's group.

    The summary has what was found, and the difference of each row with its interval, p and verdict. folder: of the
    sweep; its name is the run's id, so that a repeat replaces the run. plan: what it has of the sweep (plan.json).
    """
    set_wandb_group(group, project, folder.name)
    words = [re.sub("(^|=)/.*/", r"\1", word) for word in split(plan.get("command", ""))]  # others lack these folders
    config = {"sweep": folder.name, "command": join(words)}
    run = WandbRun(folder=str(folder), name=f"report of {folder.name}", tags=[], config=config, job_type="report")
    records = table.records
    filled = {key: None for record in records for key, value in record.items() if value is not None}
    figures = {path.stem: str(path) for path in sorted((folder / "figures").glob("*.png"))}
    pages = {"page": str(page)} if (page := folder / "report.html").exists() else {}
    run.send(summary={"found": table.summary} | {key: value for row in records for key, value in _found(row).items()})
    run.send(
        report={"columns": [*filled], "data": [[row[key] for key in filled] for row in records]}
        | {"figures": figures, "pages": pages}
    )
    run.finish()


def _found(record: dict[str, Any]) -> dict[str, Any]:
    """The tested difference of a table's row from base, by keys such as `h=4/delta`; nothing where none was tested."""
    key = next((key.removesuffix(".p") for key in record if key.endswith(".difference.p")), "")
    if record.get(f"{key}.p") is None:
        return {}
    ends = {end: record[f"{key}.{end}"] for end in ("low", "high", "open", "p")}
    found = {"delta": record[key]} | {end: value for end, value in ends.items() if value is not None}
    verdict = ("lower" if record[key] < 0 else "higher") if record[f"{key}.p"] < ALPHA else "undecided"
    within = [value for name, value in record.items() if name.startswith(f"{key}.within.")]  # where there is a margin
    return {f"{record['name']}/{end}": value for end, value in (found | {"verdict": (*within, verdict)[0]}).items()}


def runs_online(address: str) -> list[dict[str, Any]]:
    """The runs of a group or a sweep at W&B's server, by their columns as its table of runs exports them.

    Values within others have their path, such as model.width. What has a name twice is called config.NAME and
    summary.NAME.
    address: ENTITY/PROJECT/GROUP, where the last part may be the id of a sweep. Raises an InputError where there are
    none, or where the server does not answer.
    """
    import wandb

    parts = address.strip("/").split("/", 2)  # a group may have slashes in its name
    if len(parts) < 3:
        raise InputError(f"wandb://{address}: must be wandb://ENTITY/PROJECT/GROUP, but has a part less; add it")
    entity, project, group = parts
    try:
        found = wandb.Api().runs(f"{entity}/{project}", filters={"$or": [{"group": group}, {"sweep": group}]})
        runs = [({"Name": run.name, "State": run.state}, _flat(run.config), _flat(run.summary)) for run in found]
    except Exception as error:  # of the network, of the server, of a missing key
        remedy = "log in with `wandb login`, or export the table of runs as CSV"
        raise InputError(f"wandb://{address}: cannot be read: {type(error).__name__}: {error}; {remedy}") from None
    if not runs:
        raise InputError(f"wandb://{address}: has no runs; give ENTITY/PROJECT/GROUP, or the id of a sweep as GROUP")
    own, of_config, of_summary = ({key for part in parts for key in part} for parts in zip(*runs, strict=True))
    twice = of_config & of_summary | own & (of_config | of_summary)

    def renamed(part: dict[str, Any], source: str) -> dict[str, Any]:
        return {f"{source}.{key}" if key in twice else key: value for key, value in part.items()}

    return [about | renamed(config, "config") | renamed(summary, "summary") for about, config, summary in runs]


def _flat(values: Any) -> dict[str, Any]:
    """A mapping that may hold others, by the paths of its values: model.width."""
    flat: dict[str, Any] = {}
    for key, value in dict(values).items():
        inner = {f"{key}.{name}": one for name, one in _flat(value).items()} if hasattr(value, "keys") else {key: value}
        flat |= inner
    return flat


# ---------------------------------------------------------------------------------------------------------------------
# The process: `python -m transformer_pl.train.wandb_run`

_messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
_server: str | None = None  # at which the run is online, or is to be


def _main() -> None:
    threading.Thread(target=_read, daemon=True).start()
    try:
        _keep_run()
    except Exception as error:
        print(f"W&B: {type(error).__name__}: {error}", flush=True)
        os._exit(1)  # W&B's own exit handlers would wait for the server; its service ends with this process


def _read() -> None:
    """Read the messages to their end. Then make sure that W&B ends, also where the trial was killed."""
    for line in sys.stdin:
        _messages.put(*json.loads(line).items())  # one key and its content
    _messages.put(("finish", 1))
    time.sleep(END_S / 2)  # a run that has just begun may still be opened
    if not (_server and why_unreachable(_server, END_S / 2)):
        time.sleep(SEND_S - END_S / 2)
    os._exit(1)


def _keep_run() -> None:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb  # here, because it is slow

    run, view = _open_run(**_messages.get()[1]), None
    while True:
        kind, content = _messages.get()
        if kind == "log":
            run.log(content)
        elif kind == "summary":
            run.summary.update(content)
        elif kind == "translations":  # rows by column
            table = wandb.Table(columns=list(content[0]), data=[list(row.values()) for row in content])
            run.log({"translations": table})
        elif kind == "report":
            table = wandb.Table(columns=content["columns"], data=content["data"], allow_mixed_types=True)
            figures = {key: wandb.Image(path) for key, path in content["figures"].items()}
            pages = {key: wandb.Html(path, inject=False) for key, path in content["pages"].items()}
            run.log({"table": table} | figures | pages)
            if _server:  # the run is online
                view = run.entity, run.project, run.config["sweep"], content["columns"]
        elif kind == "finish":
            if content == 128 + signal.SIGTERM:
                run.mark_preempting()
            run.finish(exit_code=content)
            if view:
                _save_view(*view)
            return


def _save_view(entity: str, project: str, sweep: str, columns: list[str]) -> None:
    """Save a view of the sweep whose report this is, if the package for it is installed. columns: of its table."""
    metrics = [name for key in columns if re.fullmatch("val/[a-z]+", name := key.removesuffix(".mean"))]
    try:
        from transformer_pl.train.wandb_view import save_view

        print(f"W&B: view: {save_view(entity, project, sweep, metrics)}", file=sys.stderr)
    except ModuleNotFoundError:
        return
    except Exception as error:  # of the network, of the server, or of another version of the package
        print(plain(f"W&B: the view is not saved: {type(error).__name__}: {error}"), file=sys.stderr)


def _open_run(folder: str, name: str, tags: list[str], config: dict[str, Any], job_type: str = "train") -> Any:
    """Open the W&B run of a folder: under the id that the folder keeps, or the one that W&B's agent gives.

    The environment variables of W&B win over `name` and the default project. The run is online where there is an API
    key and the server answers, and offline otherwise, or where the user wants that. The run of a report replaces the
    earlier one.
    """
    import wandb

    global _server
    mode: Any = wandb.setup().settings.mode  # from WANDB_MODE, or else from `wandb offline` and `wandb disabled`
    if mode == "disabled":
        return wandb.init(mode=mode)  # a run that does nothing
    is_report, options = job_type == "report", _options(folder, name, tags, config, job_type)
    reason = "by `wandb offline` or WANDB_MODE"
    try:
        if mode == "online":
            _server = wandb.setup().settings.base_url
            if unreachable := why_unreachable(_server):
                raise ConnectionError(f"no answer from the server: {unreachable}")
        run = wandb.init(mode=mode, **options)
    except Exception as error:  # also where there is no API key, or where the server refuses it
        mode, reason, _server = "offline", str(error), None
        wandb.teardown()  # frees the run's id
        run = wandb.init(mode=mode, **options)
    with redirect_stderr(io.StringIO()):  # W&B warns that it makes links
        for source in sorted(Path(folder, "sources").rglob("*.py")):  # the sources of the trial's components
            run.save(source, base_path=folder, policy="now")
    if not is_report:
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        link_runs([Path(folder)], Path(folder).parents[1] / "sweeps" / config.get("sweep", "none") / "wandb")
    out = sys.stderr if is_report else sys.stdout  # where the command may print the table itself
    if mode == "offline":
        own = f"wandb sync {quote(folder)}/wandb/offline-run-*"
        later = sync_command(Path(folder).parents[1]) if is_report else own
        print(plain(f"W&B: offline ({reason}); later: {later}"), file=out, flush=True)
    elif is_report:
        print(f"W&B: {run.url}", file=out, flush=True)
    return run


def _options(folder: str, name: str, tags: list[str], config: dict[str, Any], job_type: str) -> dict[str, Any]:
    """The arguments of `wandb.init` for the run of a folder."""
    import wandb

    is_report, of_folder = job_type == "report", re.sub("[^A-Za-z0-9]", "-", Path(folder).name)
    place = Path(folder, "report") if is_report else Path(folder)  # the sweep's own wandb/ has links to the trials
    id_file = place / "wandb" / "run-id"
    id_file.parent.mkdir(exist_ok=True, parents=True)
    if not is_report and not id_file.exists():
        row, _, seed = name.rpartition(" ")
        begins = re.sub("[^A-Za-z0-9_]+", "-", f"{row[:30]} {seed}").strip("-")
        write_atomically(id_file, f"{begins}-{uuid.uuid4().hex[:6]}-{of_folder[-12:]}")
    options: dict[str, Any] = {
        "project": os.environ.get("WANDB_PROJECT", PROJECT),
        "job_type": job_type,
        "name": name if is_report else os.environ.get("WANDB_NAME", name),
        "tags": [tag[:64] for tag in tags],
        "config": config,
        "dir": str(place),
        "resume": "allow",
    }
    if is_report:
        options |= {"id": f"report-{of_folder[-100:]}", "resume": None}
    elif not os.environ.get("WANDB_SWEEP_ID"):
        options["id"] = read_text(id_file)
    # After finish_timeout W&B gives up, and keeps on disk what it has not sent.
    options["settings"] = wandb.Settings(
        console="off", silent=True, init_timeout=20, finish_timeout=SEND_S - END_S, program="-m transformer_pl.train"
    )
    return options


if __name__ == "__main__":
    _main()
