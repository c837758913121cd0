# SPDX-License-Identifier: Apache-2.0
"""Claims: tools/spills.py finds a spill, or the address of a global variable, on the main path of an inner loop."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools"))
import spills  # noqa: E402

LDSM = "LDSM.16.M88.4 R4, [R8]"
HMMA = "HMMA.16816.F32.BF16 R4, R8, R12, R4"

# An outer loop (.L_x_0) around an inner one (.L_x_1) with a rare path and with a wait that lies after the end.
KERNEL = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   {outer} ;
        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8] ;
.L_x_1:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R6 ;
        /*0040*/              @!P0 BRA `(.L_x_9) ;
.L_x_2:
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8] ;
        /*0060*/                   {main} ;
        /*0070*/               @P1 BRA `(.L_x_3) ;
        /*0080*/                   {before} ;
        /*0090*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*00a0*/                   {rare} ;
.L_x_3:
        /*00b0*/               @P2 BRA `(.L_x_1) ;
        /*00c0*/               @P3 BRA `(.L_x_0) ;
        /*00d0*/                   EXIT ;
.L_x_9:
        /*00e0*/                   {wait} ;
        /*00f0*/                   BRA `(.L_x_2) ;
"""


# A loop whose two branches both hold HMMA: each can be avoided, but not both.
TWO_BRANCHES = f"""
.L_x_1:
        /*0010*/                   HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8] ;
        /*0020*/               @P1 BRA `(.L_x_2) ;
        /*0030*/                   {HMMA} ;
        /*0040*/                   STL [R1], R6 ;
        /*0050*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*0060*/                   {HMMA} ;
.L_x_3:
        /*0070*/               @P2 BRA `(.L_x_1) ;
        /*0080*/                   EXIT ;
"""

# A loop that passes a tile over: the way around HMMA is a way around HGMMA too.
TILE_PASSED_OVER = f"""
.L_x_1:
        /*0010*/               @P1 BRA `(.L_x_2) ;
        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8] ;
        /*0030*/               @P3 BRA `(.L_x_4) ;
.L_x_4:
        /*0040*/                   {HMMA} ;
        /*0050*/                   STL [R1], R6 ;
.L_x_2:
        /*0060*/               @P2 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
"""


def found(**where):
    """Spills in KERNEL with an instruction, or several, at each of these places."""
    nothing = dict.fromkeys(("outer", "main", "before", "rare", "wait"), "NOP")
    loops, spilled = spills.spills_in_inner_loops(KERNEL.format(**(nothing | where)))
    assert loops == 1, loops
    return spilled


def lines(*instructions):
    return " ;\n        /*0068*/                   ".join(instructions)


class Spills(unittest.TestCase):
    def test_on_the_main_path_they_are_found(self):
        self.assertEqual(found(main="LDL R6, [R1+0x4]"), ["0060 LDL R6, [R1+0x4] ;"])
        self.assertEqual(found(main="STL.64 [R1], R6"), ["0060 STL.64 [R1], R6 ;"])
        self.assertEqual(len(found(main="@P0 STL [R1], R6")), 1)

    def test_addresses_of_global_variables_count_and_parameters_do_not(self):
        self.assertEqual(found(main="LDC.64 R18, c[0x4][RZ]"), ["0060 LDC.64 R18, c[0x4][RZ] ;"])
        self.assertEqual(found(main="LDC R18, c[0x0][0x210]"), [])

    def test_in_a_wait_that_lies_elsewhere_they_are_found(self):
        self.assertEqual(len(found(wait="LDL R6, [R1]")), 1)

    def test_in_the_rare_path_and_in_the_outer_loop_they_may_be(self):
        for place in ("before", "rare", "outer"):
            self.assertEqual(found(**{place: "STL [R1], R6"}), [], place)

    def test_instructions_of_the_rare_path_excuse_nothing_on_the_main_path(self):
        for instruction in (LDSM, HMMA):
            with self.subTest(instruction):
                self.assertEqual(len(found(main=lines(instruction, "STL [R1], R6"))), 1)

    def test_a_detour_without_hmma_is_no_rare_path(self):
        self.assertEqual(len(found(wait=lines(LDSM, "STL [R1], R6"))), 1)

    def test_branches_that_cannot_all_be_avoided_are_not_rare(self):
        for kernel, spilled in ((TWO_BRANCHES, "0040 STL [R1], R6 ;"), (TILE_PASSED_OVER, "0050 STL [R1], R6 ;")):
            self.assertEqual(spills.spills_in_inner_loops(kernel), (1, [spilled]))


if __name__ == "__main__":
    unittest.main()
