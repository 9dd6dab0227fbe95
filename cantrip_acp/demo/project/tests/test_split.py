import unittest

from pennywise import by_weight, evenly


class Evenly(unittest.TestCase):
    def test_a_bill_that_divides(self) -> None:
        self.assertEqual(evenly(9000, 3), [3000, 3000, 3000])

    def test_shares_add_up_to_the_bill(self) -> None:
        for total, people in ((10000, 3), (1001, 2), (7, 4)):
            self.assertEqual(sum(evenly(total, people)), total, f"{total} pennies between {people}")

    def test_nobody_pays_more_than_a_penny_extra(self) -> None:
        shares = evenly(10000, 3)
        self.assertLessEqual(max(shares) - min(shares), 1)

    def test_nobody_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            evenly(100, 0)


class ByWeight(unittest.TestCase):
    def test_shares_follow_the_weights(self) -> None:
        self.assertEqual(by_weight(10000, [2, 1]), [6667, 3333])
