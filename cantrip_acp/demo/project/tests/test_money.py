import unittest

from pennywise import parse, show


class Money(unittest.TestCase):
    def test_amounts_round_trip(self) -> None:
        for text in ("0.00", "0.05", "12.30", "100.00"):
            self.assertEqual(show(parse(text)), text)

    def test_whole_amounts_need_no_point(self) -> None:
        self.assertEqual(parse("12"), 1200)

    def test_anything_else_is_refused(self) -> None:
        for text in ("", "1.2", "1,20", "-3", "ten"):
            with self.assertRaises(ValueError):
                parse(text)
