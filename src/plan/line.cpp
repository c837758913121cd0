// SPDX-License-Identifier: Apache-2.0
// plan: Plan, variant and device <-> one line of text.
#include <charconv>
#include <sstream>
#include <vector>

#include "src/base/text.hpp"
#include "src/plan/plan.hpp"

namespace froghopper {
namespace {

Failure invalid(std::string why) { return {FH_INVALID_PROBLEM, std::move(why)}; }

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(line);
  for (std::string part; std::getline(in, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

// "kv128" with prefix "kv" -> 128.
bool number_after(const std::string& token, const std::string& prefix, int& value) {
  if (token.rfind(prefix, 0) != 0) return false;
  const char *begin = token.data() + prefix.size(), *end = token.data() + token.size();
  const auto read = std::from_chars(begin, end, value);
  return read.ec == std::errc() && read.ptr == end;
}

// "d192v128" or "d128".
bool read_dims(const std::string& token, FwdVariant& v) {
  const size_t cut = token.find('v');
  if (!number_after(token.substr(0, cut), "d", v.dim_qk)) return false;
  v.dim_v = v.dim_qk;
  return cut == std::string::npos || number_after(token.substr(cut), "v", v.dim_v);
}

bool read_part(const std::string& token, FwdVariant& v) {
  if (token == "f16") return v.dtype = Dtype::f16, true;
  if (token == "bf16") return v.dtype = Dtype::bf16, true;
  if (token == "causal") return v.mask = Mask::causal, true;
  if (token == "window") return v.mask = Mask::window, true;
  if (token == "ragged") return v.ragged = true;
  if (token == "softcap") return v.softcap = true;
  return number_after(token, "kv", v.tile_kv) || number_after(token, "q", v.tile_q) ||
         number_after(token, "s", v.stages) || read_dims(token, v);
}

}  // namespace

std::string variant_name(const FwdVariant& v) {
  std::string name = text("fwd.{}.d{}", v.dtype == Dtype::f16 ? "f16" : "bf16", v.dim_qk);
  if (v.dim_v != v.dim_qk) name += text("v{}", v.dim_v);
  name += text(".q{}.kv{}.s{}", v.tile_q, v.tile_kv, v.stages);
  if (v.mask != Mask::none) name += v.mask == Mask::causal ? ".causal" : ".window";
  if (v.ragged) name += ".ragged";
  if (v.softcap) name += ".softcap";
  return name;
}

Result<FwdVariant> parse_variant(const std::string& name) {
  FwdVariant v{};
  const std::vector<std::string> parts = split(name, '.');
  for (size_t i = 0; i < parts.size(); ++i)
    if (i == 0 ? parts[i] != "fwd" : !read_part(parts[i], v))
      return invalid(text("'{}' in variant {} is not known; a variant reads like fwd.bf16.d128.q128.kv128.s2.causal.",
                          parts[i], name));
  if (variant_name(v) != name)
    return invalid(
        text("variant {} does not name every part once and in order; the nearest is {}.", name, variant_name(v)));
  return v;
}

std::string Plan::line() const {
  if (grid == 0) return text("{} -> nothing to compute", problem.line());
  std::string line = text("{} -> {} grid {}", problem.line(), variant_name(variant), grid);
  if (order.section < order.pairs || order.tail > 0) line += text(" section {} tail {}", order.section, order.tail);
  return line + text(" smem {}KiB ws {}", smem_bytes / 1024, workspace_bytes);
}

Result<Device> Device::parse(const std::string& line) {
  Device device;
  const std::vector<std::string> parts = split(line, ' ');
  const Failure unclear =
      invalid(text("'{}' names no device; write a name and the number of SMs, like \"h200 132sm\", or "
                   "\"auto\", \"hopper\", \"cpu\".",
                   line));
  if (parts.size() < 2) return unclear;
  device.name = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t cut = parts[i].find_first_not_of("0123456789");
    int mebibytes = 0;
    if (i == 1 && cut != 0 && cut != std::string::npos && parts[i].substr(cut) == "sm" &&
        number_after(parts[i].substr(0, cut), "", device.sms) && device.sms > 0)
      continue;
    if (parts[i].ends_with("MiB") && number_after(parts[i].substr(0, parts[i].size() - 3), "l2=", mebibytes) &&
        mebibytes > 0) {
      device.l2_bytes = int64_t{mebibytes} << 20;
      continue;
    }
    if (parts[i].rfind("tiles=", 0) == 0 && (device.tiles = parse_tiles(parts[i].substr(6)))) continue;
    return unclear;
  }
  return device;
}

std::string Device::line() const {
  std::string out = text("{} {}sm l2={}MiB", name, sms, l2_bytes >> 20);
  if (tiles) out += text(" tiles={}x{}s{}", tiles->q, tiles->kv, tiles->stages);
  return out;
}

}  // namespace froghopper
