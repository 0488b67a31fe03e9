"""A campaign that is killed at a step: `python -m tests.remote.doomed_campaign WHEN STEP URL FOLDER`.

WHEN is `before` or `after`; STEP names a function below. The state of the run is in FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote import campaign, fetch, follow, prepare
from tests.remote.doomed import die
from tests.remote.rented import make_desk

STEPS: dict[str, tuple[Any, str]] = {
    "connect": (campaign, "_linked"),
    "arm": (prepare, "arm"),
    "push": (prepare, "push"),
    "set up": (prepare, "set_up"),
    "job start": (follow.job, "start"),
    "log": (follow.Log, "add"),
    "stage": (campaign, "run_stage"),
    "copy of results": (fetch, "sync"),
    "laying down of results": (fetch, "_copy_whole"),
    "destruction": (campaign, "release"),
}


def fatal(when: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def step(*given: Any, **more: Any) -> Any:
        if when == "before":
            die()
        call(*given, **more)
        die()

    return step


def main(when: str, step: str, url: str, folder: str) -> None:
    owner, name = STEPS[step]
    setattr(owner, name, fatal(when, getattr(owner, name)))
    campaign.campaign(make_desk(url, Path(folder), say=lambda line: None))


if __name__ == "__main__":
    main(*sys.argv[1:])
