"""Java libraries from Maven Central, downloaded once by Maven into a folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tidelog.errors import TidelogError

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <dependencyManagement><dependencies>
{pinned}
  </dependencies></dependencyManagement>
  <dependencies>
{wanted}
  </dependencies>
</project>
"""
_DEPENDENCY = """\
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>\
"""


class JarsNotAvailable(TidelogError):
    """Java or Maven is missing, or Maven could not fetch something; the message says which."""


def fetch_jars(
    folder: Path,
    artifacts: Sequence[str],
    groups: Sequence[str] = (),
    pinned: Sequence[str] = (),
) -> Path:
    """The folder of the jars of some artifacts, `group:artifact:version` each, and of all that they
    depend on; with `groups` only what these publish. `pinned` are the versions of dependencies that
    count whatever version is asked for. What is there already is not fetched again.

    Raises JarsNotAvailable.
    """
    # Maven would take a relative path for one beside the pom.
    lib = (folder / "lib").absolute()
    if (lib / "complete").exists():
        return lib
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise JarsNotAvailable(f"{tool} is missing: install a JDK 17 and Maven")
    shutil.rmtree(lib, ignore_errors=True)
    lib.mkdir(parents=True)
    pom = folder / "pom.xml"
    pom.write_text(_POM.format(pinned=_dependencies(pinned), wanted=_dependencies(artifacts)))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={lib}"]
    if groups:
        command += [f"-DincludeGroupIds={','.join(groups)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        what = ", ".join([*artifacts, *pinned])
        raise JarsNotAvailable(f"Maven could not fetch {what}:\n{done.stdout[-2000:]}")
    (lib / "complete").touch()
    return lib


def _dependencies(artifacts: Sequence[str]) -> str:
    return "\n".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
