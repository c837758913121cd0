// SPDX-License-Identifier: Apache-2.0
// tests: the library in a process that does what processes do. Claims: exit() and fork() may be called while threads
// compute; a call that finds no memory has written nothing, whichever allocation fails; a listener can be replaced
// while threads log; dlclose unloads.
#include <dlfcn.h>
#include <froghopper/froghopper.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/runtime/runtime.hpp"

// Memory that fails when a test wants it to: the allocation of this number, or from it on, on this thread.
namespace {
constexpr int never = -1;
thread_local int fails_in = never;
thread_local bool fails_from_then_on = false;

void* allocate(size_t bytes, size_t alignment) {
  if (fails_in == 0) {
    if (!fails_from_then_on) fails_in = never;
    throw std::bad_alloc();
  }
  if (fails_in > 0) --fails_in;
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment + alignment);
  return memory ? memory : throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

constexpr float untouched = 12345.0f;

// A problem with dense tensors of its own, whose numbers depend on nothing but the problem.
struct Call {
  explicit Call(const char* line) : problem(fh_problem_init()), tensors(fh_tensors_init()) {
    EXPECT_EQ(fh_problem_parse(line, &problem), FH_OK) << fh_last_error();
    const int64_t rows_q = problem.batch * problem.seq_q * problem.heads_q;
    const int64_t rows_kv = problem.batch * problem.seq_kv * problem.heads_kv;
    q = numbers(rows_q * problem.dim_qk, 1);
    k = numbers(rows_kv * problem.dim_qk, 2);
    v = numbers(rows_kv * problem.dim_v, 3);
    o.assign(rows_q * problem.dim_v, untouched);
    lse.assign(rows_q, untouched);
    tensors.q = dense(q, problem.seq_q, problem.heads_q, problem.dim_qk);
    tensors.k = dense(k, problem.seq_kv, problem.heads_kv, problem.dim_qk);
    tensors.v = dense(v, problem.seq_kv, problem.heads_kv, problem.dim_v);
    tensors.o = dense(o, problem.seq_q, problem.heads_q, problem.dim_v);
    tensors.lse = lse.data();
  }
  Call(const Call&) = delete;

  static std::vector<float> numbers(int64_t count, uint32_t seed) {
    std::vector<float> all(count);
    for (float& x : all) x = static_cast<float>((seed = seed * 1664525 + 1013904223) >> 16) / 32768 - 1;
    return all;
  }
  static fh_tensor dense(std::vector<float>& data, int64_t seq, int64_t heads, int64_t dim) {
    return {data.data(), seq * heads * dim, heads * dim, dim};
  }

  fh_status run(const char* target = "cpu") { return fh_attention(&problem, target, &tensors, nullptr, 0, nullptr); }
  bool written() const {
    for (float x : o)
      if (x != untouched) return true;
    for (float x : lse)
      if (x != untouched) return true;
    return false;
  }
  void clear() {
    o.assign(o.size(), untouched);
    lse.assign(lse.size(), untouched);
  }

  fh_problem problem;
  fh_tensors tensors;
  std::vector<float> q, k, v, o, lse;
};

constexpr const char* lines[] = {"fwd f32 b2 hq4 hkv2 sq100 skv130 d64 causal", "fwd f32 b1 hq4 hkv4 sq60 skv90 d32",
                                 "fwd f32 b1 hq2 hkv1 sq1 skv300 d128", "fwd f32 b3 hq1 hkv1 sq8 skv8 d8"};

// What a child process ends with: 0 where `work` returns true. Killed after a while where it hangs.
int status_of_child(const std::function<int()>& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(work());
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

std::string words(int status) {
  if (WIFSIGNALED(status)) return std::string("ended by signal ") + strsignal(WTERMSIG(status));
  return "returned " + std::to_string(WEXITSTATUS(status));
}

// Threads that compute until this goes away.
class Crowd {
 public:
  explicit Crowd(int size) {
    for (int n = 0; n < size; ++n) {
      threads_.emplace_back([this, n] {
        std::vector<std::unique_ptr<Call>> calls;
        for (const char* line : lines) calls.push_back(std::make_unique<Call>(line));
        for (size_t i = n; !over_; ++i) {
          Call& call = *calls[i % calls.size()];  // another one each time: the table of plans is asked
          if (call.run() != FH_OK) ++failed;
          fh_plan* plan = nullptr;  // speaks to the listener, if there is one
          if (i % 4 == 0 && fh_plan_create(&call.problem, "cpu", &plan) == FH_OK) fh_plan_destroy(plan);
          ++turns;
        }
      });
    }
    while (turns < 4 * size) std::this_thread::yield();
  }
  ~Crowd() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  std::atomic<int> turns{0}, failed{0};

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

TEST(process, may_exit_while_threads_compute) {
  for (int round = 0; round < 200; ++round) {
    const int status = status_of_child([round] {
      auto* const crowd = new Crowd(3);  // never joined
      usleep(round % 20 * 100);
      if (crowd->failed > 0) return 1;
      std::exit(0);
    });
    ASSERT_EQ(status, 0) << "round " << round << ": " << words(status);
  }
}

TEST(process, may_fork_while_threads_compute) {
  Call expected(lines[0]);
  ASSERT_EQ(expected.run(), FH_OK) << fh_last_error();
  ASSERT_EQ(Call(lines[3]).run("auto"), FH_OK) << fh_last_error();  // whatever that asks once, is asked
  std::atomic<int> heard{0};
  const auto hear = [](const char*, void* user) { ++*static_cast<std::atomic<int>*>(user); };
  fh_set_log(hear, &heard);
  {
    Crowd crowd(3);
    for (int round = 0; round < 400; ++round) {
      const int status = status_of_child([&] {
        Call call(lines[0]);
        if (call.run(round % 2 == 0 ? "cpu" : "auto") != FH_OK) return 1;
        if (call.o != expected.o || call.lse != expected.lse) return 2;
        const int before = heard;
        fh_plan* plan = nullptr;
        if (fh_plan_create(&call.problem, "cpu", &plan) != FH_OK || heard <= before) return 3;
        fh_set_log(nullptr, nullptr);  // waits for nobody: the threads that were inside are not here
        return 0;
      });
      ASSERT_EQ(status, 0) << "round " << round << ": " << words(status);
    }
    EXPECT_EQ(crowd.failed, 0);
  }
  fh_set_log(nullptr, nullptr);
}

// A listener that takes its time, and knows whether it may still be called.
struct Ear {
  std::atomic<bool> gone{false};
  std::atomic<int> heard{0}, heard_when_gone{0};
  static void hear(const char*, void* user) {
    Ear& ear = *static_cast<Ear*>(user);
    ++ear.heard;
    usleep(500);
    if (ear.gone) ++ear.heard_when_gone;
  }
};

TEST(process, a_listener_is_replaced_while_threads_log) {
  Ear ears[20];
  fh_set_log(Ear::hear, &ears[0]);
  {
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (int n = 0; n < 4; ++n) {
      threads.emplace_back([&] {
        Call call(lines[3]);
        while (!over) {
          fh_plan* plan = nullptr;
          if (fh_plan_create(&call.problem, "cpu", &plan) == FH_OK) fh_plan_destroy(plan);
        }
      });
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 1; i < 20; ++i) {
      while (ears[i - 1].heard < 8) std::this_thread::yield();
      fh_set_log(Ear::hear, &ears[i]);
      ears[i - 1].gone = true;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    over = true;
    for (std::thread& thread : threads) thread.join();
  }
  fh_set_log(nullptr, nullptr);
  for (const Ear& ear : ears) EXPECT_EQ(ear.heard_when_gone, 0);
}

TEST(process, a_listener_may_set_another) {
  static std::atomic<int> second{0};
  fh_set_log([](const char*, void*) { fh_set_log([](const char*, void*) { ++second; }, nullptr); }, nullptr);
  Call call(lines[3]);
  for (int i = 0; i < 2; ++i) {
    fh_plan* plan = nullptr;
    ASSERT_EQ(fh_plan_create(&call.problem, "cpu", &plan), FH_OK);
    fh_plan_destroy(plan);
  }
  fh_set_log(nullptr, nullptr);
  EXPECT_EQ(second, 1);
}

bool signals_blocked() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, SIGINT) == 1;
}

// In a new process, where neither threads nor scratch wait from earlier calls, the n-th allocation of a call fails.
TEST(process, a_call_without_memory_has_written_nothing) {
  // Lengths of their own, so that the CPU needs a list of them too.
  Call call("fwd f32 b4 hq4 hkv2 sq200 skv200 d64 seqused");
  const std::vector<int32_t> used{200, 3, 150, 99};
  call.tensors.seqused_q = call.tensors.seqused_kv = used.data();
  enum { all_there, had_none, was_wrong };
  for (const bool from_then_on : {false, true}) {
    int failures = 0;
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 1000);
      const int status = status_of_child([&] {
        fails_from_then_on = from_then_on;
        fails_in = n;
        const fh_status ran = call.run();
        const bool reached = fails_in == never || (from_then_on && fails_in == 0);
        fails_in = never;
        if (signals_blocked()) return int{was_wrong};
        if (ran != FH_OK && (ran != FH_INTERNAL || call.written() || !*fh_last_error())) return int{was_wrong};
        const std::vector<float> o = call.o;
        call.clear();
        if (call.run() != FH_OK || (ran == FH_OK && call.o != o)) return int{was_wrong};
        return int{reached ? had_none : all_there};
      });
      ASSERT_TRUE(WIFEXITED(status)) << "allocation " << n << ": " << words(status);
      ASSERT_NE(WEXITSTATUS(status), was_wrong) << "allocation " << n;
      if (WEXITSTATUS(status) == all_there) break;
      ++failures;
    }
    EXPECT_GT(failures, 5);
  }
}

// Takes all memory that malloc has for this thread and that the system would give it.
class NoMemory {
 public:
  NoMemory() {
    getrlimit(RLIMIT_AS, &old_);
    rlimit none = old_;
    none.rlim_cur = 1;  // less than is in use: nothing more is given
    setrlimit(RLIMIT_AS, &none);
    for (size_t bytes = 1 << 20; bytes >= 8; bytes = bytes > 4096 ? bytes / 2 : bytes - 8) {
      while (void* const memory = std::malloc(bytes)) new (memory) void*(std::exchange(taken_, memory));
    }
  }
  ~NoMemory() {
    setrlimit(RLIMIT_AS, &old_);
    while (taken_) std::free(std::exchange(taken_, *static_cast<void**>(taken_)));
  }

 private:
  rlimit old_;
  void* taken_ = nullptr;
};

TEST(process, a_first_failing_call_without_memory_says_so) {
  const int status = status_of_child([] {
    bool right = false;
    std::thread([&right] {
      {
        const NoMemory none;
        right =
            fh_plan_create(nullptr, "cpu", nullptr) != FH_OK && std::strcmp(fh_last_error(), "out of memory") == 0;
      }
      right = right && fh_plan_create(nullptr, "cpu", nullptr) == FH_INVALID_PROBLEM;
      right = right && std::strstr(fh_last_error(), "problem is NULL") != nullptr;
    }).join();
    return right ? 0 : 1;
  });
  EXPECT_EQ(status, 0) << words(status);
}

bool mapped(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(name) != std::string::npos) return true;
  return false;
}

// After calls of all kinds on two threads that live on: the one that loaded the library and another.
TEST(process, dlclose_unloads) {
  namespace fs = std::filesystem;
  const std::string name = "libprocess_" + std::to_string(getpid()) + ".so";
  const fs::path path = fs::temp_directory_path() / name;
  fs::copy_file(FROGHOPPER_LIBRARY, path, fs::copy_options::overwrite_existing);
  std::atomic<int> step{0};
  const auto wait_for = [&step](int n) {
    while (step < n) std::this_thread::yield();
  };
  for (int round = 0; round < 3; ++round) {
    step = 0;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto use = [library] {
      const auto attention = reinterpret_cast<decltype(&fh_attention)>(dlsym(library, "fh_attention"));
      const auto explain = reinterpret_cast<decltype(&fh_explain)>(dlsym(library, "fh_explain"));
      const auto set_log = reinterpret_cast<decltype(&fh_set_log)>(dlsym(library, "fh_set_log"));
      const auto last_error = reinterpret_cast<decltype(&fh_last_error)>(dlsym(library, "fh_last_error"));
      Call call("fwd f32 b2 hq4 hkv4 sq300 skv300 d64");
      set_log([](const char*, void*) {}, nullptr);
      EXPECT_EQ(attention(&call.problem, "cpu", &call.tensors, nullptr, 0, nullptr), FH_OK) << last_error();
      EXPECT_NE(attention(nullptr, "cpu", nullptr, nullptr, 0, nullptr), FH_OK);
      EXPECT_NE(*explain(&call.problem, "cpu"), '\0');
      set_log(nullptr, nullptr);
    };
    std::thread other([&] {
      use();
      step = 1;
      wait_for(2);
    });
    use();
    wait_for(1);
    EXPECT_TRUE(mapped(name));
    EXPECT_EQ(dlclose(library), 0);
    EXPECT_FALSE(mapped(name)) << "round " << round;
    const int status = status_of_child([] { return 0; });  // nothing of it is called when the process forks
    EXPECT_EQ(status, 0) << words(status);
    step = 2;
    other.join();  // nor when a thread ends that has used it
  }
  fs::remove(path);
}

// Every call on the CPU asks whether a GPU's driver is in the process; dlopen takes 20 microseconds to find none.
TEST(process, asking_for_the_driver_costs_little_and_finds_one_that_comes_later) {
  const int status = status_of_child([] {
    namespace fs = std::filesystem;
    using froghopper::runtime::driver_is_loaded;
    if (driver_is_loaded()) return 0;  // nothing to see on this machine
    using std::chrono::steady_clock;
    auto fastest = steady_clock::duration::max();
    for (int round = 0; round < 20; ++round) {
      const auto begin = steady_clock::now();
      for (int i = 0; i < 100; ++i)
        if (driver_is_loaded()) return 1;
      fastest = std::min(fastest, steady_clock::now() - begin);
    }
    if (fastest > std::chrono::microseconds(200)) return 2;

    const fs::path folder = fs::temp_directory_path() / ("froghopper_process_" + std::to_string(getpid()));
    fs::create_directories(folder);
    fs::copy_file(FROGHOPPER_LIBRARY, folder / "libcuda.so.1");
    void* const other = dlopen((folder / "libother.so").c_str(), RTLD_NOW);
    if (other || driver_is_loaded()) return 3;
    void* const library = dlopen((folder / "libcuda.so.1").c_str(), RTLD_NOW);
    const bool found = driver_is_loaded();
    fs::remove_all(folder);
    return library && found ? 0 : 4;
  });
  EXPECT_EQ(status, 0) << words(status);
}

}  // namespace
