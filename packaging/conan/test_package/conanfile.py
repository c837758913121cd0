# SPDX-License-Identifier: Apache-2.0
"""What conan create does with the package that it has made: builds examples/find_package with it and runs that."""
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class Example(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "CMakeToolchain"

    def requirements(self): self.requires(self.tested_reference_str)

    def layout(self): cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder="../../../examples/find_package")
        cmake.build()

    def test(self):
        if can_run(self): self.run(os.path.join(self.cpp.build.bindir, "attention"), env="conanrun")
