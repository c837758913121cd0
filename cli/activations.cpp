// SPDX-License-Identifier: Apache-2.0
// cli: from tensor files to inputs that can be computed. What a file leaves out is derived from the shapes, and every
// refusal names the tensor.
#include "cli/activations.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <ranges>
#include <tuple>

#include "cli/activation_lists.hpp"
#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/plan/kernel.hpp"

namespace froghopper::cli {

namespace {

using files::FileTensor;
using files::TensorFile;

bool is_npy(const std::string& path) { return path.ends_with(".npy"); }

// The paths that a user's words name, with blanks, commas or both between them. Commas are part of a path in a
// .safetensors, and in a word that is the name of a file.
std::vector<std::string> paths_of(const std::vector<std::string>& in) {
  std::vector<std::string> all;
  for (const std::string& word : in) {
    std::error_code error;
    if (word.ends_with(".safetensors") || std::filesystem::exists(word, error))
      all.push_back(word);
    else
      std::ranges::move(split(word, ','), std::back_inserter(all));
  }
  return all;
}

Result<TensorFile> read_files(const std::vector<std::string>& paths) {
  if (paths.size() == 1 && paths[0].ends_with(".safetensors")) return files::read_safetensors(paths[0]);
  if (paths.size() < 3 || paths.size() > 4 || !std::ranges::all_of(paths, is_npy)) {
    return wrong(
        text("the input must be one .safetensors, or three or four .npy, but is {}. Write Q.npy K.npy V.npy or "
             "Q.npy K.npy V.npy CU_SEQLENS.npy, with blanks or commas between{}.",
             joined(paths, " "),
             paths.size() == 5 ? "; where k has other lengths than q, a .safetensors with cu_seqlens_q and "
                                 "cu_seqlens_kv"
                               : ""));
  }
  static constexpr const char* names[] = {"q", "k", "v", "cu_seqlens"};
  TensorFile file;
  for (size_t i = 0; i < paths.size(); ++i) {
    auto tensor = files::read_npy(paths[i]);
    if (!tensor) return tensor.failure();
    file.tensors[names[i]] = std::move(*tensor);
  }
  return file;
}

// Of fh_tensors. A file may also have cu_seqlens, for both sides.
constexpr std::string_view taken[] = {"q",         "k",          "v",    "cu_seqlens_q", "cu_seqlens_kv",
                                      "seqused_q", "seqused_kv", "sink", "alibi_slopes", "gate",
                                      "grad_o",    "grad_lse"};

// What the library knows and attend does not take. Who names a tensor so expects more than that it is passed over.
std::string not_taken(const TensorFile& file) {
  for (const Tensor& tensor : tensors())
    if (file.tensors.contains(tensor.name) && std::ranges::find(taken, tensor.name) == std::end(taken))
      return text(
          "attend does not take {}, so it would be ignored; of a file it takes {} and cu_seqlens. Leave it out, or "
          "give it another name.",
          tensor.name, joined(taken, ", "));
  return {};
}

struct QKV {
  FileTensor q, k, v;
  bool packed = false;

  // batch, rows, heads, columns; a tensor of three extents is one sequence, or all of them end to end.
  std::array<int64_t, 4> extents(const FileTensor& t) const {
    const size_t n = t.shape.size();
    return {n == 4 ? t.shape[0] : 1, t.shape[n - 3], t.shape[n - 2], t.shape[n - 1]};
  }
};

Result<QKV> take_qkv(TensorFile& file, bool packed) {
  QKV in;
  in.packed = packed;
  for (const auto& [name, into] : {std::pair{"q", &in.q}, {"k", &in.k}, {"v", &in.v}}) {
    auto tensor = take(file, name);
    if (!tensor)
      return wrong(text("there is no tensor {}{}; attention needs q, k and v. Name them so.", name,
                        file.tensors.empty() ? "" : " beside " + joined(std::views::keys(file.tensors), ", ")));
    *into = std::move(*tensor);
    const size_t extents = into->shape.size();
    if (packed && extents != 3) {
      return wrong(text("{} must be [total, heads, dim] with cu_seqlens, but has {}. Reshape it.", name,
                        counted(extents, "extent")));
    }
    if (extents != 3 && extents != 4) {
      return wrong(text("{} must be [batch, seq, heads, dim] or [seq, heads, dim], but has {}. Reshape it.", name,
                        counted(extents, "extent")));
    }
    if (into->element != in.q.element && dtype_of(in.q.element)) {
      return wrong(text("{} is {} and q is {}; q, k and v have one type. Convert one of them.", name,
                        name_of(into->element), name_of(in.q.element)));
    }
  }
  if (!dtype_of(in.q.element)) {
    return wrong(text("q must be fp16, bf16 or fp32, but is {}. Convert q, k and v.", name_of(in.q.element)));
  }
  return in;
}

// What k and v must have in common with q and with one another, beyond what a problem can say.
std::string disagreement(const QKV& in) {
  const auto q = in.extents(in.q), k = in.extents(in.k), v = in.extents(in.v);
  if (k[0] != q[0] || v[0] != q[0])
    return text("q, k and v have {}, {} and {} sequences; each sequence has all three", q[0], k[0], v[0]);
  if (k[1] != v[1]) return text("k has {} and v has {}; a key has one value", counted(k[1], "row"), v[1]);
  if (k[2] != v[2]) return text("k has {} and v has {}; both must have the same heads", counted(k[2], "head"), v[2]);
  if (q[3] != k[3])
    return text("q has {} and k has {}; they are multiplied with one another", counted(q[3], "column"), k[3]);
  return {};
}

// What is wrong with the problem, and where heads would fit if they came before rows, that they seem to.
Failure wrong_or_turned(const QKV& in, Failure failure) {
  const auto q = in.extents(in.q), k = in.extents(in.k);
  if (k[1] == 0 || k[2] == 0 || q[2] % k[2] == 0 || q[1] % k[1] != 0) return failure;
  failure.text.erase(std::min(failure.text.find(" If heads are before rows"), failure.text.size()));
  failure.text += " If heads are before rows, exchange both axes.";
  return failure;
}

// Of axes that can be computed as they are, and rarely are right: of q and of k there are more heads than rows, and the
// rows would fit as heads. A step of decoding has one row.
std::string seem_turned(const QKV& in) {
  const auto q = in.extents(in.q), k = in.extents(in.k);
  if (q[1] <= 1 || k[1] == 0 || q[1] % k[1] != 0 || q[2] <= q[1] || k[2] <= k[1]) return {};
  return text("q is [{}] and k is [{}], read as {}: {} of {} and {}. If heads are before rows, exchange both axes.",
              joined(in.q.shape, ", "), joined(in.k.shape, ", "),
              in.packed                ? "[total, heads, dim]"
              : in.q.shape.size() == 3 ? "[seq, heads, dim]"
                                       : "[batch, seq, heads, dim]",
              counted(q[2], "head"), counted(q[1], "query", "queries"), counted(k[1], "key"));
}

fh_problem describe(const QKV& in, const Wishes& wishes) {
  const auto q = in.extents(in.q), k = in.extents(in.k), v = in.extents(in.v);
  fh_problem p = fh_problem_init();
  p.dtype = static_cast<fh_dtype>(*dtype_of(in.q.element));
  p.batch = q[0];
  p.heads_q = q[2], p.heads_kv = k[2];
  p.seq_q = q[1], p.seq_kv = k[1];
  p.dim_qk = q[3], p.dim_v = v[3];
  p.causal = wishes.causal;
  p.align = wishes.top_left ? FH_TOP_LEFT : FH_BOTTOM_RIGHT;
  if (!wishes.window.empty()) p.window_left = wishes.window[0], p.window_right = wishes.window[1];
  p.scale = wishes.scale;
  p.softcap = wishes.softcap;
  p.max_logit = wishes.max_logit;
  return p;
}

// Room for what the problem writes.
void make_room(Activations& a) {
  for (const Tensor& tensor : tensors()) {
    if (!is_written(tensor.use(a.problem))) continue;
    const Shape s = tensor.shape(a.problem);
    const auto bytes = static_cast<size_t>(s.batch * s.seq * s.heads * s.dim * size_of(s.element));
    keep(*a.inputs, tensor.view, Bytes(bytes, 0), {s.batch, s.seq, s.heads, s.dim});
  }
}

void keep_tensors(Activations& a, QKV& qkv) {
  const auto shape = qkv.extents(qkv.q);
  const auto shape_of = [&](View Views::*view) -> std::vector<int64_t>& { return a.shapes[index_of(view)]; };
  a.shapes.resize(tensors().size());
  shape_of(&Views::o) = qkv.q.shape;
  shape_of(&Views::o).back() = a.problem.dim_v;
  shape_of(&Views::lse) = {shape[2], shape[1]};
  if (qkv.q.shape.size() == 4) shape_of(&Views::lse).insert(shape_of(&Views::lse).begin(), shape[0]);
  shape_of(&Views::max_logit) = {a.problem.batch, a.problem.heads_q};
  shape_of(&Views::grad_q) = qkv.q.shape;
  shape_of(&Views::grad_k) = qkv.k.shape;
  shape_of(&Views::grad_v) = qkv.v.shape;
  shape_of(&Views::grad_sink) = {a.problem.heads_q};
  shape_of(&Views::grad_gate) = shape_of(&Views::o);
  for (const auto& [view, tensor] : {std::pair{&Views::q, &qkv.q}, {&Views::k, &qkv.k}, {&Views::v, &qkv.v}})
    keep(*a.inputs, view, std::move(tensor->bytes), qkv.extents(*tensor));
  make_room(a);
}

// Nothing, or that the tensor is not as the result `like` is.
Result<void> check_like(const Activations& a, const char* name, const FileTensor& tensor, View Views::*like,
                        Element wanted) {
  const std::vector<int64_t>& shape = a.shapes[index_of(like)];
  if (tensor.shape == shape && tensor.element == wanted) return {};
  return wrong(text("{0} must be {1} [{2}], as {3} is, but is {4} [{5}]. Give {0} the type and the shape of {3}.",
                    name, name_of(wanted), joined(shape, ", "), tensors()[index_of(like)].name,
                    name_of(tensor.element), joined(tensor.shape, ", ")));
}

Result<void> take_gate(Activations& a, TensorFile& file) {
  auto gate = take(file, "gate");
  if (!gate) return {};
  if (auto ok = check_like(a, "gate", *gate, &Views::o, element_of(a.problem.dtype)); !ok) return ok;
  const Shape o = tensors()[index_of(&Views::o)].shape(a.problem);
  keep(*a.inputs, &Views::gate, std::move(gate->bytes), {o.batch, o.seq, o.heads, o.dim});
  return {};
}

// grad_o and grad_lse, of the input or of a file of their own.
Result<void> take_gradients(Activations& a, TensorFile& input, const std::string& path) {
  TensorFile own;
  if (!path.empty()) {
    if (is_npy(path)) {
      auto tensor = files::read_npy(path);
      if (!tensor) return tensor.failure();
      own.tensors["grad_o"] = std::move(*tensor);
    } else {
      auto file = files::read_safetensors(path);
      if (!file) return file.failure();
      own = std::move(*file);
    }
  }
  TensorFile& file = path.empty() ? input : own;
  a.grad_o = take(file, "grad_o");
  a.grad_lse = take(file, "grad_lse");
  if (!a.grad_o && !path.empty()) return wrong(text("{} has no tensor grad_o; name it so.", path));
  if (!a.grad_o && a.grad_lse) return wrong("there is a grad_lse, but no grad_o. Add it; it may be 0.");

  const Element element = element_of(a.problem.dtype);
  for (const auto& [name, tensor, like, wanted] :
       {std::tuple{"grad_o", &a.grad_o, &Views::o, element}, {"grad_lse", &a.grad_lse, &Views::lse, Element::f32}}) {
    if (!*tensor) continue;
    if (auto ok = check_like(a, name, **tensor, like, wanted); !ok) return ok;
  }
  return {};
}

}  // namespace

Result<Activations> load_activations(const std::vector<std::string>& words, const Wishes& wishes) {
  Activations a;
  a.read_from = paths_of(words);
  auto file = read_files(a.read_from);
  if (!file) return file.failure();
  if (!wishes.grad.empty()) a.read_from.push_back(wishes.grad);
  if (std::string why = not_taken(*file); !why.empty()) return wrong(std::move(why));
  const bool packed = file->tensors.contains("cu_seqlens") || file->tensors.contains("cu_seqlens_q") ||
                      file->tensors.contains("cu_seqlens_kv");
  auto qkv = take_qkv(*file, packed);
  if (!qkv) return qkv.failure();
  if (const auto why = disagreement(*qkv); !why.empty()) return wrong(why + ". Give them equally many.");

  a.inputs = std::make_unique<check::Inputs>();
  a.metadata = std::move(file->metadata);
  check::Inputs& in = *a.inputs;
  fh_problem user = describe(*qkv, wishes);
  const NamesOfLists lists = names_of_lists(*file);
  if (packed) {
    if (auto kept = keep_all_cu_seqlens(in, *file, user); !kept) return kept.failure();
  }
  if (auto kept = keep_options(in, *file, user); !kept) return kept.failure();
  auto problem = Problem::from(user);
  if (!problem) return wrong_or_turned(*qkv, problem.failure());
  a.problem = *problem;
  a.seem_turned = seem_turned(*qkv);

  keep_tensors(a, *qkv);
  if (auto taken = take_gate(a, *file); !taken) return taken.failure();
  if (auto taken = take_gradients(a, *file, wishes.grad); !taken) return taken.failure();

  for (const auto& [name, tensor] : file->tensors) a.unused.push_back(name);

  // A GPU plan cannot look at lengths that are in its memory; here they are still on the host.
  const auto views = bind(a.problem, in.tensors);
  if (!views) return views.failure();
  if (auto fit = check_lengths(a.problem, *views); !fit) return with_names_of_lists(fit.failure(), lists);
  return a;
}

void turn_around(Activations& a) {
  a.problem.op = FH_BACKWARD, a.problem.max_logit = false;
  a.inputs->tensors.max_logit = nullptr;
  const Shape o = tensors()[index_of(&Views::o)].shape(a.problem);
  keep(*a.inputs, &Views::grad_o, a.grad_o->bytes, {o.batch, o.seq, o.heads, o.dim});
  if (a.grad_lse) keep(*a.inputs, &Views::grad_lse, a.grad_lse->bytes);
  make_room(a);
}

}  // namespace froghopper::cli
