"""Get an answer as an object of a class of yours. A wrong answer is asked for again."""

import sys
from typing import Literal

from pydantic import BaseModel, Field

from cantrip_acp import Cantrip

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"


class Review(BaseModel):
    verdict: Literal["accept", "reject"]
    stars: int = Field(ge=1, le=5)
    reasons: list[str]


cantrip = Cantrip(crystal, result_type=Review, max_turns=5)
review = cantrip.cast_sync("Review this: 'The plot is thin, but every sentence sings.'").result
print(f"{review.verdict}, {review.stars} of 5: {'; '.join(review.reasons)}")
