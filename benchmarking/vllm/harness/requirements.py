"""Which packages a machine needs, and one sentence where one of them is not installed at all.

config.py calls `name_missing_packages` before anything else is imported, so this needs nothing but Python itself.
"""

import importlib.util
import sys
from pathlib import Path
from types import TracebackType

from harness.overrides import REFUSED, SUITE_DIR


def name_missing_packages() -> None:
    """From now on, a package that is not installed ends the script with a sentence and the exit code of a refusal."""
    otherwise = sys.excepthook

    def refuse(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (package := _missing(error)) is None:
            otherwise(kind, error, trace)
            return
        found = f"expected the package {package}, found it nowhere in {sys.prefix}"
        print(f"refused: {found}. {_activate()}{install()}", file=sys.stderr)
        sys.exit(REFUSED)

    sys.excepthook = refuse


def on_cpu() -> bool:
    """Whether vLLM's CPU engine is to run."""
    import config

    return config.GPUS_PER_ENGINE == 0 or config.LOGICAL_GPUS


def requirements_file() -> Path:
    return SUITE_DIR / ("requirements-cpu.txt" if on_cpu() else "requirements.txt")


def install() -> str:
    again = " && pip uninstall -y torchvision torchaudio torchcodec" if on_cpu() else ""
    return f"Run pip install -r {requirements_file()}{again}"


def _activate() -> str:
    """The likeliest cause where `make setup` was run: its packages are there, and this is another Python."""
    made = SUITE_DIR.parents[1] / ".venv"
    elsewhere = (made / "bin" / "activate").exists() and made.resolve() != Path(sys.prefix).resolve()
    return f"Run . {made}/bin/activate first, which `make setup` made. Or else: " if elsewhere else ""


def _missing(error: BaseException) -> str | None:
    """The package that an import did not find; None for a module that is missing in one that is there."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    return package if package not in sys.modules and importlib.util.find_spec(package) is None else None
