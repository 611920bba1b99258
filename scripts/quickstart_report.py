"""Prints what a quickstart run changed; exits with 1 unless the held-out loss fell by at least 40%.

quickstart_report.py RUN_FOLDER: metrics.jsonl, before.json and after.json lie there.
"""

import json
import pathlib
import sys
import textwrap

COLUMN = 46
REQUIRED_FALL = 0.40


def first_line(text):
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""


def wrap(text):
    return [piece for line in text.strip().splitlines() for piece in textwrap.wrap(line, COLUMN) or [""]]


def side_by_side(left, right):
    left, right = wrap(left), wrap(right)
    for i in range(max(len(left), len(right))):
        a = left[i] if i < len(left) else ""
        b = right[i] if i < len(right) else ""
        print(f"  {a:<{COLUMN}} | {b}".rstrip())


def main():
    run = pathlib.Path(sys.argv[1])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    before, after = (json.loads((run / name).read_text()) for name in ("before.json", "after.json"))

    print("\nThree words that were not in the training data:")
    for old, new in list(zip(before, after))[:3]:
        print(f"\n  {old['question']}")
        print(f"  {'-- before ':-<{COLUMN}} | {'-- after ':-<{COLUMN}}")
        side_by_side(old["text"], new["text"])

    hits = [sum(first_line(a["text"]) == first_line(a["expected"]) for a in answers)
            for answers in (before, after)]
    fall = 1 - losses[-1] / losses[0]
    print("\n                                         before    after")
    print(f"  held-out loss (nats a token)         {losses[0]:8.4f} {losses[-1]:8.4f}   ({-100 * fall:+.0f}%)")
    print(f"  first line exactly right, of {len(before):3} words {hits[0]:7} {hits[1]:8}")
    if fall < REQUIRED_FALL:
        print(f"error: the held-out loss fell by {100 * fall:.0f}%, less than {100 * REQUIRED_FALL:.0f}%",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
