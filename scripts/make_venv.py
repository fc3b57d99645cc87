"""Make a virtual environment and install Mainspring into it: make_venv.py FOLDER EXTRA.

The interpreter that runs this script becomes that of the environment. A working environment is kept and
brought up to date; a broken one, or one of another Python version, is made anew.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the user's python3 may be older, and deserves a clear answer
    sys.exit(
        "Mainspring needs Python 3.11 or newer, but {} is Python {}.{}; "
        "install a newer one and name it: make PYTHON=python3.12".format(sys.executable, *sys.version_info)
    )

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRINT_VERSION = "import pip, sys; print(sys.version_info[:2])"


def is_usable(python: Path) -> bool:
    """Whether this environment has pip and the Python version that runs this script."""
    try:
        probe = subprocess.run([python, "-c", PRINT_VERSION], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return probe.stdout.strip() == str(sys.version_info[:2])


def ensure_ensurepip() -> None:
    """Debian ships Python without the module that `venv` needs; fetch it, or say how."""
    if importlib.util.find_spec("ensurepip"):
        return
    package = "python{}.{}-venv".format(*sys.version_info)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        sys.exit(f"{sys.executable} cannot make virtual environments; run: sudo apt-get install -y {package}")
    subprocess.run(["apt-get", "update", "-q"], check=True)
    subprocess.run(["apt-get", "install", "-y", package], check=True)


def main(folder: Path, extra: str) -> None:
    """Make `folder` if it is missing or broken, and install the package in it, editable."""
    python = folder / "bin" / "python"
    if not is_usable(python):
        print(f"making {folder} with {sys.executable}")
        ensure_ensurepip()
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    print(f"installing mainspring[{extra}] in {folder}")
    pip_install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip_install, "--editable", f"{ROOT}[{extra}]"], check=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except subprocess.CalledProcessError as failure:
        sys.exit(failure.returncode)  # the command has said why
