"""How the package's own build makes the C library: plain C that ctypes loads, so no Python version is in its name."""

from __future__ import annotations

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildNative(build_ext):
    """Names the library as ctypes looks for it."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"


class TagNative(bdist_wheel):
    """Tags the wheel for its platform and any Python 3: the library knows neither Python's nor torch's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]
