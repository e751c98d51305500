"""Writes what an installation of this package consists of, as a CycloneDX SBOM: python -m tools.sbom dist/NAME.cdx.json

The wheel and its dependencies are installed into a new environment, in the versions of constraints.txt; the library
cyclonedx-bom, which uv runs in an environment of its own, reads their names, versions, hashes and licences from there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from niels_gpt.version import __version__

REPOSITORY = Path(__file__).parent.parent
CYCLONEDX = "cyclonedx-bom==7.5.0"


def main() -> None:
    """Build the environment and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--extras", default="", help="extras of the installation, as in hf,hub")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        uv("build", "--quiet", "--wheel", "--out-dir", folder, REPOSITORY)
        (wheel,) = Path(folder).glob("*.whl")
        environment = Path(folder) / "environment"
        uv("venv", "--quiet", "--python", sys.executable, environment)
        package = f"{wheel}[{asked.extras}]" if asked.extras else str(wheel)
        pins = REPOSITORY / "constraints.txt"
        uv("pip", "install", "--quiet", "--python", environment, "--constraint", pins, package)
        options = ["--output-reproducible", "--of", "JSON", "--sv", "1.6", "-o", out]
        options += ["--pyproject", REPOSITORY / "pyproject.toml", "--mc-type", "library"]
        uv("tool", "run", "--quiet", "--from", CYCLONEDX, "cyclonedx-py", "environment", *options, environment)
    sbom = json.loads(out.read_text(encoding="utf-8"))
    sbom["metadata"]["component"]["version"] = __version__  # which pyproject.toml does not name
    out.write_text(json.dumps(sbom, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {out}")


def uv(*arguments: str | Path) -> None:
    """Run uv where pip would look for packages, too."""
    found = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if os.environ.get("PIP_FIND_LINKS") else {}
    subprocess.run([sys.executable, "-m", "uv", *map(str, arguments)], env={**os.environ, **found}, check=True)


if __name__ == "__main__":
    main()
