// SPDX-License-Identifier: Apache-2.0
// cli: froghopper attend, attention on tensors from files.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "check/backends.hpp"
#include "check/compare.hpp"
#include "cli/activations.hpp"
#include "cli/commands.hpp"
#include "src/base/printable.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

struct Options {
  std::vector<std::string> in;
  std::string out, backend = "auto";
  Wishes wishes;
  bool lse = false, check = false;
  int repeat = 5;
};

constexpr const char* examples =
    "Examples:\n"
    "  froghopper attend data/minilm_alice.safetensors -o out.safetensors --lse --check\n"
    "  froghopper attend q.npy k.npy v.npy -o o.npy --causal --backend cpu\n"
    "  froghopper attend in.safetensors -o out.safetensors --window 512,0 --softcap 30\n"
    "  froghopper attend in.safetensors -o out.safetensors --grad grad_o.npy --check";

// Validators return what is wrong. The command line's own reader takes numbers that the type cannot hold: a scale of
// 1e-60 would become 0, which asks for the default, and a window of 99999999999999999999 the largest there is.
template <class T>
std::string number_in(std::string_view value, T& number, const char* range) {
  if (value.starts_with('+')) value.remove_prefix(1);
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc::result_out_of_range)
    return text("{} is out of the range of {}. Use one within.", value, range);
  if (error != std::errc() || end != value.data() + value.size())
    return text("{} is not a number. Write it in digits, as {}.", value, std::is_integral_v<T> ? "512" : "0.125");
  return {};
}

// "LEFT,RIGHT"
std::string read_window(const std::string& value, std::vector<int64_t>& window) {
  const size_t comma = std::min(value.find(','), value.size());
  int64_t left = 0, right = 0;
  std::string why = number_in(value.substr(0, comma), left, "64 bits");
  if (why.empty() && comma == value.size())
    why = text("{} is one number; LEFT,RIGHT are two. Write both, as in 512,0.", value);
  if (why.empty()) why = number_in(value.substr(comma + 1), right, "64 bits");
  for (const int64_t keys : {left, right})
    if (why.empty() && keys < -1) why = text("{} counts no keys. Use 0 or more, or -1 for all.", keys);
  window = {left, right};
  return why;
}

std::string is_window(const std::string& value) {
  std::vector<int64_t> window;
  return read_window(value, window);
}

std::string positive_float(const std::string& value) {
  float number = 0;
  std::string why = number_in(value, number, "a float, 1e-45 to 3.4e38");
  if (why.empty() && !(number > 0 && std::isfinite(number)))
    why = text("{} is not positive and finite. Use a positive number, or leave it out.", value);
  return why;
}

// Refused before anything is computed.
std::string bad_output(const Options& options, Dtype dtype) {
  const bool npy = options.out.ends_with(".npy");
  if (!npy && !options.out.ends_with(".safetensors")) {
    return text("the output must end in .safetensors or .npy, but is {}. Name it so.", options.out);
  }
  return npy && dtype == Dtype::bf16 ? "the input is bf16, which .npy does not have. Write .safetensors." : "";
}

Result<std::vector<double>> compute(const fh_plan* plan, const Options& options, Activations& a) {
  return fh_plan_on_gpu(plan) ? check::run_on_gpu(plan, *a.inputs, options.repeat)
                              : check::run_on_cpu(plan, *a.inputs, options.repeat);
}

// A few seconds of one core; beyond that only some rows are compared. Gradients have five products instead of two.
constexpr double most_products = 4e9;

Result<check::Outcome> compare_with_oracle(const Activations& a, const Views& views, check::Backend backend) {
  const Problem& p = a.problem;
  check::Case c;
  c.problem = p;
  const double products = static_cast<double>(p.rows_q()) * static_cast<double>(p.heads_q) *
                          static_cast<double>(p.seq_kv) * static_cast<double>(p.dim_qk + p.dim_v);
  c.sample_rows = products > most_products / (p.backward() ? 2.5 : 1) && !p.max_logit;  // which is of all rows
  if (auto can = check::can_be_judged(c, views); !can) return can.failure();
  const char* const some = p.backward() ? "the rows of some heads" : "256 rows";
  std::fprintf(stderr, "comparing %s with fp64\n", c.sample_rows ? some : "every row");
  const check::Reference reference = check::make_reference(c, views, backend);
  check::Outcome out;
  check::Found found;
  out.why = check::take_rows(reference, views, found);
  if (out.why.empty()) check::compare(p, reference, found, out);
  return out;
}

void print_time(std::vector<double> ms) {
  std::ranges::sort(ms);
  std::printf("time      %.3f ms, median of %zu runs (%.3f to %.3f)\n", ms[ms.size() / 2], ms.size(), ms.front(),
              ms.back());
}

void print_error(const check::Outcome& out) {
  const double lse = out.of("lse").error;
  for (const check::Measures& m : out.measures) {
    if (m.tensor == "lse") continue;
    const std::string name = m.tensor == "o" ? "" : m.tensor + ": ",
                      also = m.tensor == "o" ? text("; lse {:.1e}", lse) : "";
    std::printf("error     %s%.2e at most against fp64, allowed %.2e; relative %.2e%s: %s\n", name.c_str(), m.error,
                m.allowed, m.relative, also.c_str(), out.passed ? "right" : "WRONG");
  }
  if (!out.passed) std::printf("          %s\n", out.why.c_str());
}

// Plans, runs and checks the problem as it is now.
int attend(const Options& options, Activations& a) {
  std::printf("problem   %s\n", a.problem.line().c_str());
  const auto plan = check::create_plan(a.problem, options.backend);
  if (!plan) return complain(plan.failure());
  std::printf("plan      %s\n", fh_plan_line(plan->get()));
  const auto ms = compute(plan->get(), options, a);
  if (!ms) return complain(ms.failure());
  print_time(*ms);
  if (!options.check) return exit_ok;
  const auto views = bind(a.problem, a.inputs->tensors);
  if (!views) return complain(views.failure());
  const check::Backend backend = fh_plan_on_gpu(plan->get()) ? check::Backend::hopper : check::Backend::cpu;
  const auto out = compare_with_oracle(a, *views, backend);
  if (!out) return complain(out.failure());
  print_error(*out);
  return out->passed ? exit_ok : exit_check_failed;
}

int run(const Options& options) {
  auto a = load_activations(options.in, options.wishes);
  if (!a) return complain(a.failure());
  if (const auto why = bad_output(options, a->problem.dtype); !why.empty()) return complain(exit_bad_input, why);
  if (auto can = can_save_activations(options.out, *a, options.lse); !can) return complain(can.failure());
  if (!a->unused.empty())
    complain(exit_ok, text("{} in the input {} not used. froghopper attend --help names what is.",
                           joined(a->unused, ", "), a->unused.size() == 1 ? "is" : "are"));
  if (!a->seem_turned.empty()) complain(exit_ok, a->seem_turned);
  if (options.wishes.top_left && !a->problem.aligned())
    complain(exit_ok, "--top-left is not used: without --causal, --window or alibi_slopes nothing is aligned.");
  int code = attend(options, *a);
  if (code != exit_ok && code != exit_check_failed) return code;
  if (a->grad_o) {
    turn_around(*a);
    const int backward = attend(options, *a);
    if (backward != exit_ok && backward != exit_check_failed) return backward;
    code = std::max(code, backward);
  }
  const auto written = save_activations(options.out, *a, options.lse);
  if (!written) return complain(written.failure());
  std::printf("wrote     %s\n", printable(*written).c_str());
  return code;
}

}  // namespace

void attend_command(CLI::App& program, int& exit_code) {
  CLI::App* command = program.add_subcommand("attend", "Compute attention on tensors from files");
  const auto options = std::make_shared<Options>();
  describe_at_length(
      *command,
      "Reads q, k and v as [batch, seq, heads, dim] or [seq, heads, dim], with cu_seqlens as [total, heads, dim]; "
      "in\n"
      "fp16, bf16 or fp32. A .safetensors may also have cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, sink,\n"
      "alibi_slopes and gate; its metadata is passed through. With grad_o, in the input or by --grad, the gradients\n"
      "grad_q, grad_k, grad_v, grad_sink and grad_gate are computed too; a .safetensors may have grad_lse as well.");
  command->footer(examples);
  command->add_option("input", options->in, "IN.safetensors, or Q.npy K.npy V.npy [CU_SEQLENS.npy], also with commas")
      ->required()
      ->type_name("IN");
  command->add_option("-o,--output", options->out, "OUT.safetensors or OUT.npy")->required()->type_name("OUT");
  Wishes& w = options->wishes;
  auto* causal = command->add_flag("--causal", w.causal, "the last query sees the last key, those before see fewer");
  // One word and not two, or "--window 1,2 in.safetensors" would take the file for a number.
  command
      ->add_option_function<std::string>(
          "--window", [options](const std::string& value) { read_window(value, options->wishes.window); },
          "keys seen before and after the query's own; -1: all")
      ->check(is_window)
      ->type_name("LEFT,RIGHT")
      ->excludes(causal);
  command->add_flag("--top-left", w.top_left, "causal or window: the first query is level with the first key");
  command->add_option("--scale", w.scale, "of q k^T; by default 1/sqrt(dim)")->check(positive_float);
  command->add_option("--softcap", w.softcap, "scores become C tanh(score / C)")
      ->check(positive_float)
      ->type_name("C");
  command->add_option("--grad", w.grad, "the gradient of o, of its shape and type: gradients are computed too")
      ->type_name("GRAD_O.npy|FILE.safetensors");
  add_backend_option(*command, options->backend);
  command->add_flag("--lse", options->lse, "also write the log of every row's denominator");
  command->add_flag("--max-logit", w.max_logit, "also write the largest score of each sequence and query head");
  command->add_flag("--check", options->check,
                    "compare with fp64 and print the error; exit code 1 if it is too large");
  command->add_option("--repeat", options->repeat, "runs that are timed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace froghopper::cli
