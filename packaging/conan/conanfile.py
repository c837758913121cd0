# SPDX-License-Identifier: Apache-2.0
"""The Conan recipe, for the sources that it lies in: conan create packaging/conan --build=missing. cuda.h, the header
of the driver, must be on the machine: in a CUDA toolkit, or in the folder that the option cuda_include names.
"""
import pathlib
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Froghopper(ConanFile):
    name = "froghopper"
    description = "Exact attention on NVIDIA Hopper GPUs and on CPUs"
    license = "Apache-2.0"
    topics = ("attention", "cuda", "hopper")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "cuda_include": [None, "ANY"]}
    default_options = {"shared": True, "fPIC": True, "cuda_include": None}
    implements = ["auto_shared_fpic"]

    def set_version(self):
        header = (ROOT / "include/froghopper/froghopper.h").read_text(encoding="utf-8")
        self.version = ".".join(re.search(rf"^#define FH_VERSION_{part} (\d+)", header, re.MULTILINE)[1]
                                for part in ("MAJOR", "MINOR", "PATCH"))

    def export_sources(self):
        for folder in ("cmake", "contract", "device", "docs", "include", "packaging", "presets", "src"):
            copy(self, f"{folder}/*", ROOT, self.export_sources_folder)
        for file in ("CMakeLists.txt", "LICENSE*", "README.md", "CHANGELOG.md"):
            copy(self, file, ROOT, self.export_sources_folder)

    def requirements(self):
        self.requires("fmt/[>=9 <12]", visible=False)  # headers alone, as Highway's and xxHash's
        self.requires("highway/1.0.3", visible=False)
        self.requires("xxhash/[>=0.8 <0.9]", visible=False)

    def layout(self): cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for option in ("CLI", "TESTS", "WERROR", "PRESETS", "XLA"):
            toolchain.cache_variables[f"FROGHOPPER_{option}"] = False
        if self.options.cuda_include:
            toolchain.cache_variables["FROGHOPPER_CUDA_INCLUDE"] = str(self.options.cuda_include)
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE*", self.source_folder, pathlib.Path(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "froghopper")
        self.cpp_info.set_property("cmake_target_name", "froghopper::froghopper")
        self.cpp_info.set_property("pkg_config_name", "froghopper")
        self.cpp_info.libs = ["froghopper"]
        self.cpp_info.system_libs = ["dl", "m", "pthread"]
        if not self.options.shared: self.cpp_info.system_libs.append("stdc++")
