"""Get an answer as an object of a class of yours. A wrong answer is asked for again."""

import sys
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent

model = sys.argv[1] if sys.argv[1:] else "openai:gpt-5"


class Review(BaseModel):
    verdict: Literal["accept", "reject"]
    stars: int = Field(ge=1, le=5)
    reasons: list[str]


agent = Agent(model, output_type=Review, retries=4)
review = agent.run_sync("Review this: 'The plot is thin, but every sentence sings.'").output
print(f"{review.verdict}, {review.stars} of 5: {'; '.join(review.reasons)}")
