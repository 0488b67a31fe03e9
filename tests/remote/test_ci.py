"""What continuous integration runs, where the programs that tests of boxes need are there and where not."""

from __future__ import annotations

import pytest

from tests.remote.checkout import Checkout

APT = """#!/bin/bash
echo "apt-get $*" >>"$CALLS"
[[ -z "$APT_FAILS" ]] || { echo "no route to the mirror" >&2; exit 100; }
[[ "$1" != install || -n "$APT_LIES" ]] || ln -s /bin/true "${0%/*}/rsync"
[[ "$1" != install || -n "$APT_LIES" ]] || ln -s /bin/true "${0%/*}/ssh-keygen"
"""
SUDO = """#!/bin/bash
echo "sudo $*" >>"$CALLS"
[[ -z "$SUDO_ASKS" ]] || exit 1
shift
[[ "$1" == true ]] || exec "$@"
"""
INSTALLED = [
    "apt-get update -qq",
    "apt-get install -y -qq --no-install-recommends openssh-server openssh-client rsync",
]


@pytest.fixture
def bare(checkout: Checkout) -> Checkout:
    """Without ssh-keygen and rsync; apt-get would bring them."""
    checkout.add_python()
    checkout.on_call('echo "required: $LLM_LADDER_REQUIRE_SSHD" >>"$CALLS"')
    checkout.write_program(checkout.path / "apt-get", APT)
    user(checkout, 0)
    return checkout


def user(checkout: Checkout, number: int) -> None:
    checkout.write_program(checkout.path / "id", f"#!/bin/bash\necho {number}\n")


def apt_calls(checkout: Checkout) -> list[str]:
    return [line for line in checkout.calls if line.startswith("apt-get")]


def test_it_runs_the_test_stage_where_a_skip_is_a_failure(bare: Checkout) -> None:
    for name in ("sshd", "ssh-keygen", "rsync"):
        bare.write_program(bare.path / name, "#!/bin/bash\n")
    assert bare.call(".ci/run").returncode == 0
    (call,) = bare.python_calls
    assert call["argv"][1:] == ["-m", "pytest", "-n", "2"]  # type: ignore[index]
    assert bare.calls[-1] == "required: 1" and apt_calls(bare) == []


def test_what_is_missing_is_installed(bare: Checkout) -> None:
    done = bare.call(".ci/run")
    assert done.returncode == 0, done.stderr
    assert apt_calls(bare) == INSTALLED and len(bare.python_calls) == 1


def test_with_sudo_where_that_works_without_a_password(bare: Checkout) -> None:
    user(bare, 1000)
    bare.write_program(bare.path / "sudo", SUDO)
    assert bare.call(".ci/run").returncode == 0
    assert apt_calls(bare) == INSTALLED and len([line for line in bare.calls if "sudo -n" in line]) == 3


@pytest.mark.parametrize(
    ("number", "sudo", "variables", "message"),
    [
        (1000, False, {}, "needs ssh-keygen rsync and can install nothing"),
        (1000, True, {"SUDO_ASKS": "1"}, "sudo asks for a password"),
        (0, False, {"APT_FAILS": "1"}, "apt-get update failed"),
        (0, False, {"APT_LIES": "1"}, "but there is still no ssh-keygen rsync"),
    ],
)
def test_where_they_cannot_be_had_it_says_so_and_fails(
    bare: Checkout, number: int, sudo: bool, variables: dict[str, str], message: str
) -> None:
    user(bare, number)
    if sudo:
        bare.write_program(bare.path / "sudo", SUDO)
    done = bare.call(".ci/run", **variables)
    assert done.returncode == 1 and message in done.stderr
    assert bare.python_calls == []


def test_without_apt(bare: Checkout) -> None:
    (bare.path / "apt-get").unlink()
    done = bare.call(".ci/run")
    assert done.returncode == 1 and "there is no apt-get: install openssh-server and rsync" in done.stderr
