// SPDX-License-Identifier: Apache-2.0
// What takes the place of device_gpu.cpp where the CUDA runtime was not found.
#include <stdexcept>

#include "device.hpp"

namespace serve {

std::unique_ptr<Device> make_gpu() {
  throw std::invalid_argument(
      "--device cuda: this program was built without the CUDA runtime. Configure it with "
      "-DCUDART=FOLDER, which holds include/ and lib/.");
}

}  // namespace serve
