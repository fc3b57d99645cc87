"""Pythons that this machine does not have, from Debian unstable in a folder of its own.

`debootstrap` fills the folder; every command runs in it by `chroot`, in mount and process namespaces that end with
the command. So no mount and no process outlives it, not even after a kill, and removing the folder cannot reach
through a mount. The mirror, the proxies, the settings of pip, and the paths that these name are read
from this machine when the script runs. Nothing of them is stored in the repository.

Nothing in the folder can write to this machine: its paths are mounted read-only, and only for commands that use
pip. The installation of a package writes to paths such as /etc/ssl/certs, and must find the folder's own there.
"""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

SUITE = "unstable"
COMPILER = ["gcc", "libc6-dev"]  # a new Python may come before the wheels for it
TOOLS = ["curl", "chromium-headless-shell"]  # examples call the one, tests of the dashboard drive the other
APART = ["unshare", "--mount", "--propagation=private", "--pid", "--mount-proc", "--fork", "--kill-child"]
COMPLETE = "var/lib/mainspring-complete"
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")

# The shell stays process 1 of the namespace and collects the children of processes that were killed, as init does.
ENTER = """
set -e
root=$1 count=$2
shift 2
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while [ "$count" -gt 0 ]; do
    mount --bind "$1" "$root$1"
    mount -o remount,bind,ro "$root$1"
    shift
    count=$((count - 1))
done
set +e
chroot "$root" "$@"
exit $?
"""


class Unavailable(Exception):
    """Debian unstable cannot be had here; the text says why, and what to do."""


class Chroot:
    """Debian unstable in a folder; `run` runs a command in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._environment, self._binds = _settings_of_pip()
        self._apt = ["apt-get", "-q", *_options_of_apt()]

    def fill(self, mirror: str) -> None:
        """Install the base system, unless a run before has done so."""
        if not (self.root / COMPLETE).exists():
            _require_empty(self.root)
            # It mounts /proc in the folder and leaves it there if it is interrupted: not in our namespace.
            self.require(_run_apart(["debootstrap", "--variant=minbase", SUITE, self.root, mirror], os.environ))
            (self.root / COMPLETE).touch()
        for name in ("resolv.conf", "hosts"):
            target = self.root / "etc" / name
            target.unlink(missing_ok=True)
            shutil.copyfile(Path("/etc", name), target)
        self.require(self._run([*self._apt, "update"]))

    def install(self, version: str) -> Path | None:
        """Install a Python with what its packages need to be built, and return it; None if Debian has none."""
        wanted = [f"python{version}{ending}" for ending in ("", "-venv", "-dev")]
        if self._run(["apt-cache", "show", "--quiet", *wanted], quiet=True):
            return None
        tests = f"libpython{version}-testsuite"  # CPython's own tests, which some of ours run
        if not self._run(["apt-cache", "show", "--quiet", tests], quiet=True):
            wanted.append(tests)
        options = ["install", "--yes", "--no-install-recommends"]
        self.require(self._run([*self._apt, *options, *wanted, *COMPILER, *TOOLS]))
        return Path("/usr/bin", f"python{version}")

    def run(self, command: Sequence[str | Path], *, cwd: str = "/") -> int:
        """Run a command in the folder, with the paths that pip's settings name; return its exit code."""
        for path in self._binds:
            _make_place(path, self.root)
        return self._run(command, cwd=cwd, binds=[str(path) for path in self._binds])

    def _run(
        self, command: Sequence[str | Path], *, cwd: str = "/", binds: Sequence[str] = (), quiet: bool = False
    ) -> int:
        inside = ["/usr/bin/env", f"--chdir={cwd}", *command]
        enter = ["sh", "-c", ENTER, "sh", str(self.root), str(len(binds)), *binds]
        return _run_apart([*enter, *inside], self._environment, quiet=quiet)

    def require(self, code: int) -> None:
        """Raise `Unavailable` for a command that has failed, and has said why."""
        if code:
            raise Unavailable(f"a command in {self.root} failed with exit code {code}; its output says why")

    def copy_in(self, repository: Path, folder: str) -> None:
        """Copy what git tracks, or would track, so that the tests run on what was there at the beginning."""
        target = self.root / folder.lstrip("/")
        shutil.rmtree(target, ignore_errors=True)
        git = ["git", "-c", f"safe.directory={repository}", "-C", str(repository)]
        listing = subprocess.run(
            [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        for name in filter(None, listing.stdout.split("\0")):
            if (repository / name).exists():  # not if it was deleted, and that is not committed yet
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(repository / name, target / name)


@contextmanager
def debian_unstable(keep: Path | None) -> Iterator[Chroot]:
    """Make Debian unstable in a temporary folder that is removed at the end; or in `keep`, which stays."""
    _require_tools()
    mirror = find_mirror(read_sources(Path("/etc/apt")))
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        chroot = Chroot(keep.resolve())
        chroot.fill(mirror)
        yield chroot
        return
    root = Path(tempfile.mkdtemp(prefix="mainspring-pythons-"))
    try:
        root.chmod(0o755)
        chroot = Chroot(root)
        chroot.fill(mirror)
        yield chroot
    finally:
        shutil.rmtree(root)


def read_sources(folder: Path) -> list[str]:
    """Return the addresses of the archives that apt fetches packages from, in its order."""
    lists = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))]
    lines = [line.split("#")[0] for path in lists if path.is_file() for line in path.read_text().splitlines()]
    found = [match[1] for line in lines if (match := re.match(r"\s*deb\s+(?:\[.*?\]\s+)?(https?://\S+)", line))]
    for path in sorted(folder.glob("sources.list.d/*.sources")):
        for paragraph in re.split(r"\n\s*\n", path.read_text()):
            text = re.sub(r"(?m)^#.*\n?", "", paragraph)
            if re.search(r"(?im)^Types:.*\bdeb\b(?!-)", text) and not re.search(r"(?im)^Enabled:\s*no", text):
                fields = re.findall(r"(?im)^URIs:((?:.*)(?:\n[ \t].*)*)", text)
                found += [uri for field in fields for uri in field.split() if uri.startswith("http")]
    return list(dict.fromkeys(uri.rstrip("/") for uri in found))


def find_mirror(addresses: Sequence[str]) -> str:
    """Return the first archive that has Debian unstable."""
    for address in addresses:
        with (
            suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"{address}/dists/{SUITE}/InRelease", timeout=60) as answer,
        ):
            if b"Origin: Debian" in answer.read(2_000):
                return address
    raise Unavailable(
        f"none of the {len(addresses)} archives in /etc/apt has Debian {SUITE}; "
        "add a Debian mirror to apt's sources, or install the missing Pythons, for instance with pyenv"
    )


def _require_tools() -> None:
    if os.geteuid() != 0:
        raise Unavailable(
            "debootstrap and chroot need root; run `sudo make pythons`, or install the missing Pythons, "
            "for instance with pyenv"
        )
    if shutil.which("debootstrap") is None:
        if shutil.which("apt-get") is None:
            raise Unavailable(
                "there is no debootstrap and no apt-get; install the missing Pythons, or debootstrap"
            )
        subprocess.run(["apt-get", "-q", "update"], check=True)
        subprocess.run(["apt-get", "-q", "install", "--yes", "--no-install-recommends", "debootstrap"], check=True)
    if _run_apart(["true"], os.environ, quiet=True):
        raise Unavailable(
            "this machine forbids namespaces (unshare fails); run it outside of the container, "
            "or give the container CAP_SYS_ADMIN"
        )


def _require_empty(root: Path) -> None:
    if any(root.iterdir()):
        raise Unavailable(f"{root} has files, and no complete Debian {SUITE}; empty it, or name another folder")


def _options_of_apt() -> list[str]:
    """Return the settings of this machine's apt that decide whether a mirror can be reached and is believed."""
    names = ["Acquire::http", "Acquire::https", "Acquire::Check-Valid-Until"]
    dump = subprocess.run(["apt-config", "dump", *names], capture_output=True, check=True, text=True)
    settings = re.findall(r'^(\S+) "(.+)";$', dump.stdout, re.MULTILINE)
    return [part for name, value in settings for part in ("-o", f"{name}={value}")]


def _settings_of_pip() -> tuple[dict[str, str], list[Path]]:
    """Return an environment with the settings of this machine's pip, and the paths that they name."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy") or name in (*CERTIFICATES, "TERM")
    }
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, check=True, text=True
    )
    for section, name, value in re.findall(r"^([\w:]+)\.([\w.-]+)=(.*)$", listing.stdout, re.MULTILINE):
        if section in ("global", "install"):
            passed.setdefault(f"PIP_{name.upper().replace('-', '_')}", str(ast.literal_eval(value)))
    named = [name for name in passed if name.startswith("PIP_") or name in CERTIFICATES]
    paths = {path for name in named for word in passed[name].split() if (path := _path_in(word))}
    binds = [path for path in sorted(paths) if not paths.intersection(path.parents)]
    usual = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
    return {**passed, **usual, "DEBIAN_FRONTEND": "noninteractive"}, binds


def _path_in(word: str) -> Path | None:
    """Return the path that a setting of pip names, if it exists; pages of an index link to files beside it."""
    path = Path(word.removeprefix("file://")).parent if word.startswith("file://") else Path(word)
    return path if path.is_absolute() and path != Path("/") and path.exists() else None


def _make_place(path: Path, root: Path) -> None:
    """Make what a path can be mounted on."""
    place = root / path.relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        place.mkdir(exist_ok=True)
    else:
        place.touch()


def _run_apart(command: Sequence[str | Path], environment: Mapping[str, str], *, quiet: bool = False) -> int:
    """Run a command whose mounts and processes end with it, even if it is interrupted; return its exit code."""
    output = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen([*APART, *command], env=environment, stdout=output, stderr=output)
    try:
        return process.wait()
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a command that still runs, with all that it has started, and wait for their end."""
    if process.poll() is not None:
        return
    with suppress(OSError):  # the end of process 1 of a namespace is the end of all of them
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    process.kill()
    process.wait()
