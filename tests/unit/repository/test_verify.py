"""The report of `make verify` agrees with the outcomes of its targets."""

from __future__ import annotations

from datetime import UTC, datetime

from scripts.verify import TARGETS, Outcome, report, rows_of, summary_lines


def test_pytest_summary_is_found_behind_colours_and_frames() -> None:
    output = (
        "\x1b[32m====== \x1b[1m12 passed\x1b[0m, 3 skipped, 4 deselected in 5.67s ======\x1b[0m\n"
    )
    assert (
        summary_lines("tests/unit/x.py ...\n" + output)
        == "12 passed, 3 skipped, 4 deselected in 5.67s"
    )


def test_failures_are_part_of_the_summary() -> None:
    output = "=== 2 failed, 10 passed in 1.00s ===\nmake: *** [Makefile:79: unit] Error 1\n"
    assert summary_lines(output) == "2 failed, 10 passed in 1.00s"


def test_a_last_line_that_says_more_is_kept() -> None:
    output = "12 passed in 5.67s\nName   Stmts\n------\nTOTAL   100   7   93%\n"
    assert summary_lines(output) == "12 passed in 5.67s; TOTAL   100   7   93%"


def test_what_a_client_logs_behind_the_summary_is_left_out() -> None:
    log = "%3|1764.1|FAIL|rdkafka#producer-1| [thrd:127.0.0.1:9092/1]: Connection refused\n"
    assert summary_lines("=== 6 passed in 5.67s ===\n" + log) == "6 passed in 5.67s"
    assert summary_lines("200 seeds, 0 violations\n" + log) == "200 seeds, 0 violations"


def test_the_summary_of_other_programs_is_their_last_line() -> None:
    assert summary_lines("seed 1\n200 seeds, 0 violations\n\n----\n") == "200 seeds, 0 violations"
    assert summary_lines("") == ""


def test_a_target_that_runs_pytest_twice_says_both() -> None:
    output = "=== 6527 passed in 260.00s ===\n=== 24 passed, 1 xfailed in 109.03s (0:01:49) ===\n"
    assert summary_lines(output) == "6527 passed in 260.00s; 24 passed, 1 xfailed in 109.03s"


def test_a_target_that_runs_again_takes_the_place_of_its_row_alone() -> None:
    begun = datetime(2026, 1, 2, tzinfo=UTC)
    rows = {target: Outcome(target, 0, 60.0, "a | b").row("`first`") for target in TARGETS}
    kept = rows_of(report(begun, rows))
    assert kept == rows
    again = Outcome("chaos", 2, 90.0, "1 failed in 90.00s")
    text = report(begun, {**kept, "chaos": again.row("`second`")})
    assert "| `make chaos` | **failed** (2) | 1 failed in 90.00s | 1.5 | `second` |" in text
    assert text.count("| `first` |") == len(TARGETS) - 1


def test_a_target_with_variables_has_a_row_of_its_own_behind_the_target() -> None:
    rows = {
        target: Outcome(target, 0, 60.0, "done").row("`first`")
        for target in ("moves SECONDS=300", "damage", "moves")
    }
    text = report(datetime(2026, 1, 2, tzinfo=UTC), rows)
    assert list(rows_of(text)) == ["moves", "moves SECONDS=300", "damage"]
