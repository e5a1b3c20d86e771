"""How the package's own build makes the C libraries: plain C that ctypes loads, so no Python version is in a name."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildNative(build_ext):
    """Names each library as ctypes looks for it, and keeps apart what is compiled of the same sources for each."""

    def build_extension(self, ext: Extension) -> None:
        shared: str = self.build_temp
        self.build_temp: str = str(Path(shared) / ext.name)
        super().build_extension(ext)
        self.build_temp = shared

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"


class TagNative(bdist_wheel):
    """Tags the wheel for its platform and any Python 3: the library knows neither Python's nor torch's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]
