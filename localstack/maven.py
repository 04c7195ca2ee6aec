"""Downloads Java libraries from Maven Central into a folder, once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tidelog.errors import TidelogError
from tidelog.localstack.made_once import made_once

_LIB = "lib"
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
    """Java, Maven or an artifact is missing; the message says which."""


def fetch_jars(
    folder: Path,
    artifacts: Sequence[str],
    groups: Sequence[str] = (),
    pinned: Sequence[str] = (),
) -> Path:
    """The folder of the jars of some artifacts (`group:artifact:version`) and their dependencies.

    `groups` limits the jars to these groups. `pinned` fixes the versions of dependencies. Jars that
    were downloaded before are not fetched again. Raises JarsNotAvailable.
    """
    # Maven would resolve a relative path beside the pom.
    folder = folder.absolute()
    with made_once(folder) as to_do:
        if to_do:
            _fetch(folder, artifacts, groups, pinned)
    return folder / _LIB


def _fetch(
    folder: Path, artifacts: Sequence[str], groups: Sequence[str], pinned: Sequence[str]
) -> None:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise JarsNotAvailable(f"{tool} is missing: install a JDK 17 and Maven")
    pom = folder / "pom.xml"
    pom.write_text(_POM.format(pinned=_dependencies(pinned), wanted=_dependencies(artifacts)))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder / _LIB}"]
    if groups:
        command += [f"-DincludeGroupIds={','.join(groups)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        what = ", ".join([*artifacts, *pinned])
        raise JarsNotAvailable(f"Maven could not fetch {what}:\n{done.stdout[-2000:]}")


def _dependencies(artifacts: Sequence[str]) -> str:
    return "\n".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
