// SPDX-License-Identifier: Apache-2.0
// tests: what a test asks of the library in fake_cuda.cpp, and tells it.
#pragma once

extern "C" {

// The context that is current on this thread; null: none.
void* fake_cuda_current();
int cuCtxPushCurrent_v2(void* one);
int cuCtxPopCurrent_v2(void** one);
// Events and streams that are made and not destroyed.
int fake_cuda_alive();
// Whether the GPU waits for 64 bits; nonzero at first.
void fake_cuda_set_64_bits(int has);
// Calls `call` once, in the next wait of this thread that is in a stream, before it looks at its word.
void fake_cuda_at_next_wait(void (*call)(void*), void* with);
}
