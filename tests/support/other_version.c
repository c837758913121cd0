/* SPDX-License-Identifier: Apache-2.0
 * tests: what a library of another version of froghopper is to a linker. */
const char* fh_version(void);
const char* fh_version(void) { return "0.0.7"; }
