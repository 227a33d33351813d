"""Print the table of a sweep from its results:  python -m transformer_pl.report FILE... [--format md|tex|...]

It also makes the table of runs that were trained elsewhere, from a CSV file with one line for each run:

    python -m transformer_pl.report runs.csv --row h --metric bleu
"""

from pathlib import Path
from shlex import join

from transformer_pl.report.options import TEXT_FORMATS, RunsReport, SweepReport, TableChoice, read_options
from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.terminal import announce, command_console, for_output, nothing_printed, say, table_width
from transformer_pl.table.formats import Table


def main(argv: list[str]) -> int:
    """Print a report of each sweep file and return the exit code."""
    options = read_options(argv)
    announce(f"reading {', '.join(map(str, options.files))}")
    with nothing_printed():
        reports = make_reports(options)
    for title, report in reports:
        print_report(title, report, options, len(reports) > 1)
    if options.format == "terminal":
        has_page = not (options.pairs or options.factors) and getattr(options, "split", "val") == "val"
        what, form = ("page", "html") if has_page else ("table for a paper", "tex")
        again = join(["python", "-m", "transformer_pl.report", *argv])
        say(command_console(), f"next, the {what}: {again} --format {form}")
    return 0


def make_reports(options: SweepReport | RunsReport) -> list[tuple[str, Table | Path]]:
    """The title of each file, with its table or the path of its page."""
    if isinstance(options, RunsReport):
        from transformer_pl.report.runs import runs_report  # scipy takes half a second

        return [runs_report(options)]
    from transformer_pl.report.sweeps import sweep_reports

    return sweep_reports(options)


def print_report(title: str, report: Table | Path, options: TableChoice, with_title: bool) -> None:
    """Print a table, below its title if `with_title`, or the path of a page."""
    shown_title = title if with_title else ""
    if isinstance(report, Path):
        print(for_output(str(report)))
    elif options.format == "terminal":
        console = command_console()
        console.print(*filter(None, [shown_title]), report.terminal(table_width(console)), sep="\n")
    else:
        is_latex = options.format == "tex"
        text = report.latex(title, options.caption) if is_latex else TEXT_FORMATS[options.format](report)
        heading = {"md": f"## {title}\n\n", "tex": f"% {title}\n"}.get(options.format, "") if with_title else ""
        print(for_output(heading + text), end="\n" if with_title else "")


if __name__ == "__main__":
    run_command(main)
