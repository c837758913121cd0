// SPDX-License-Identifier: Apache-2.0
// base: one object a thread. A thread_local object with a destructor would end the process where there is no memory to
// register it, and would keep dlclose from unloading the library while the thread lives. This one does neither.
#pragma once
#include <pthread.h>

#include <atomic>
#include <new>

namespace froghopper {

// For objects of the namespace. What threads still hold when the library goes away is not freed, and no thread that
// holds something may be ending at that very moment.
template <class T>
class PerThread {
 public:
  PerThread() { usable_ = pthread_key_create(&key_, forget) == 0; }
  ~PerThread() {
    usable_ = false;  // threads may still call while the process ends
    pthread_key_delete(key_);
  }
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;

  // This thread's object, made now if there is none; null: there is no memory for it.
  T* make() noexcept {
    if (T* const known = find()) return known;
    if (!usable_) return nullptr;
    T* const made = new (std::nothrow) T();
    if (made && pthread_setspecific(key_, made) == 0) return made;
    delete made;
    pthread_setspecific(key_, &lost_);
    return nullptr;
  }
  // Null: there is none.
  T* find() const noexcept {
    void* const known = value();
    return known == &lost_ ? nullptr : static_cast<T*>(known);
  }
  // There is none because the last make() found no memory.
  bool lost() const noexcept { return value() == &lost_; }

 private:
  static void forget(void* object) {
    if (object != &lost_) delete static_cast<T*>(object);
  }
  void* value() const noexcept { return usable_ ? pthread_getspecific(key_) : nullptr; }

  inline static char lost_ = 0;  // its address stands for "no memory": the first 32 keys of a thread take none
  std::atomic<bool> usable_ = false;
  pthread_key_t key_{};
};

}  // namespace froghopper
