// SPDX-License-Identifier: Apache-2.0
// Claims: exit() and fork() may be called while threads compute; a listener can be replaced while threads log; dlclose
// unloads; asking for a GPU's driver costs next to nothing.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "src/runtime/runtime.hpp"
#include "tests/support/call.hpp"

namespace {

using namespace froghopper::test;

constexpr const char* lines[] = {"fwd f32 b2 hq4 hkv2 sq100 skv130 d64 causal", "fwd f32 b1 hq4 hkv4 sq60 skv90 d32",
                                 "fwd f32 b1 hq2 hkv1 sq1 skv300 d128", "fwd f32 b3 hq1 hkv1 sq8 skv8 d8"};

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
  for (int round = 0; round < 150; ++round) {
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
    for (int round = 0; round < 300; ++round) {
      const int status = status_of_child([&] {
        Call call(lines[0]);
        if (call.run(round % 2 == 0 ? "cpu" : "auto") != FH_OK) return 1;
        if (call.o != expected.o || call.lse != expected.lse) return 2;
        const int before = heard;
        fh_plan* plan = nullptr;
        if (fh_plan_create(&call.problem, "cpu", &plan) != FH_OK || heard <= before) return 3;
        fh_set_log(nullptr, nullptr);  // waits for none: the threads that were inside are not here
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

// Whoever has replaced it: `first` is still running when `second`, which has replaced it, is taken away.
TEST(process, no_listener_that_was_ever_set_outlives_the_next_call) {
  struct Slow {
    std::atomic<bool> inside{false}, may_leave{false}, left{false};
  } first;
  std::atomic<int> second{0};
  const auto make_plan = [] {
    Call call(lines[3]);
    fh_plan* plan = nullptr;
    if (fh_plan_create(&call.problem, "cpu", &plan) == FH_OK) fh_plan_destroy(plan);
  };
  fh_set_log(
      [](const char*, void* user) {
        Slow& slow = *static_cast<Slow*>(user);
        if (slow.inside.exchange(true)) return;  // not the thread that looks for `second`
        while (!slow.may_leave) std::this_thread::yield();
        slow.left = true;
      },
      &first);
  std::thread logs(make_plan);
  while (!first.inside) std::this_thread::yield();
  std::thread replaces([&] {
    fh_set_log([](const char*, void* user) { ++*static_cast<std::atomic<int>*>(user); }, &second);
    EXPECT_TRUE(first.left);
  });
  while (second == 0) make_plan();  // it is in place
  std::thread lets_go([&] {
    usleep(100'000);
    first.may_leave = true;
  });
  fh_set_log(nullptr, nullptr);
  EXPECT_TRUE(first.left) << "it was still running";
  for (std::thread* thread : {&logs, &replaces, &lets_go}) thread->join();
}

// Two threads inside of listeners would wait for each other for ever.
TEST(process, listeners_that_set_others_wait_for_none) {
  static std::atomic<int> inside{0};
  fh_set_log(
      [](const char*, void*) {
        ++inside;
        while (inside < 2) std::this_thread::yield();
        fh_set_log([](const char*, void*) {}, nullptr);
      },
      nullptr);
  std::vector<std::thread> threads;
  for (int n = 0; n < 2; ++n) {
    threads.emplace_back([] {
      Call call(lines[3]);
      fh_plan* plan = nullptr;
      if (fh_plan_create(&call.problem, "cpu", &plan) == FH_OK) fh_plan_destroy(plan);
    });
  }
  for (std::thread& thread : threads) thread.join();
  fh_set_log(nullptr, nullptr);
  EXPECT_EQ(inside, 2);
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

// Those that wait while another one looks find nothing new afterwards, and yet the driver is there.
TEST(process, threads_that_ask_for_the_driver_at_once_all_find_it) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("froghopper_process_" + std::to_string(getpid()));
  fs::create_directories(folder);
  fs::copy_file(FROGHOPPER_LIBRARY, folder / "libcuda.so.1");
  for (int round = 0; round < 100; ++round) {
    const int status = status_of_child([&] {
      if (!dlopen((folder / "libcuda.so.1").c_str(), RTLD_NOW)) return 2;
      std::atomic<int> waiting{0}, missed{0};
      std::vector<std::thread> threads;
      for (int n = 0; n < 8; ++n)
        threads.emplace_back([&] {
          ++waiting;
          while (waiting < 8) {}
          if (!froghopper::runtime::driver_is_loaded()) ++missed;
        });
      for (std::thread& thread : threads) thread.join();
      return missed > 0 ? 1 : 0;
    });
    ASSERT_EQ(status, 0) << words(status) << ", round " << round;
  }
  fs::remove_all(folder);
}

}  // namespace
