"""Print how right the predictions are, beside the rivals'; check or rewrite the committed figures.

Run with `make accuracy`, or `python tests/accuracy/report.py [--check] [--write]`.
"""

import argparse
import sys
from pathlib import Path

# Its siblings are `accuracy.…`, as they are to the tests.
sys.path[0] = str(Path(__file__).parents[1])

from accuracy import page  # noqa: E402
from accuracy.figures import (  # noqa: E402
    FIGURES,
    MEASURED_PAIRS,
    PAGE,
    README,
    Figures,
    encode_figures,
    read_figures,
    worse,
)
from accuracy.grid import encode_measured_pairs  # noqa: E402
from accuracy.records import make_records  # noqa: E402
from accuracy.rivals import rivals_versions, with_rivals  # noqa: E402
from measured.rows import read_every_row  # noqa: E402


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def _show(figures: Figures) -> None:
    records = figures.records
    _say("# not compared", "", page.unpredicted(records), "# verdicts", "", page.verdicts(records))
    wrong = [record for record in records if record.misjudged]
    _say(
        f"{len(wrong)} verdicts are wrong" + "".join(f"\n- {r.id}: {r.verdict}" for r in wrong), ""
    )
    _say(
        "# by family",
        "",
        page.summary(records, "family"),
        "# by strategy",
        "",
        page.summary(records, "strategy"),
    )
    _say("# by phase", "", page.phases(records), "# host memory", "", page.host(records))
    _say("# by kind of run", "", page.by_kind(records))
    _say("# never measured together", "", page.holes(records))
    _say(page.counts(records))


def _write(figures: Figures) -> None:
    FIGURES.write_text(encode_figures(figures), encoding="utf-8")
    PAGE.write_text(page.render(figures.records, figures.versions), encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    MEASURED_PAIRS.write_text(encode_measured_pairs(read_every_row()), encoding="utf-8")
    README.write_text(page.with_headline(readme, figures.records), encoding="utf-8")
    _say(f"wrote {FIGURES.name}, {PAGE.name}, {MEASURED_PAIRS.name} and the table of {README.name}")


def _check(figures: Figures) -> int:
    """1 where a figure got worse; a page that is older than the predictions is only named."""
    committed = read_figures()
    complaints = worse(figures.records, committed.records)
    if encode_measured_pairs(read_every_row()) != MEASURED_PAIRS.read_text(encoding="utf-8"):
        complaints.append(f"{MEASURED_PAIRS.name} does not hold the pairs of the measured runs")
    for line in complaints:
        sys.stderr.write(f"worse: {line}\n")
    if not complaints and figures.records != committed.records:
        _say("no figure got worse, but some moved: `python tests/accuracy/report.py --write`")
    return 1 if complaints else 0


def main() -> int:
    """Work everything out again, show it, and do what was asked."""
    parser = argparse.ArgumentParser(description="How right the predictions are")
    parser.add_argument("--check", action="store_true", help="fail when a figure got worse")
    parser.add_argument("--write", action="store_true", help="rewrite the figures and the pages")
    asked = parser.parse_args()
    figures = Figures(versions=rivals_versions(), records=with_rivals(make_records()))
    _show(figures)
    status = _check(figures) if asked.check else 0
    if asked.write:
        _write(figures)
    return status


if __name__ == "__main__":
    sys.exit(main())
