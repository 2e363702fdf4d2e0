"""What the parent run of a comparison holds at the end: the verdict, its figures, two tables and a picture."""

from __future__ import annotations

from paradnn.compare.comparison import Comparison
from paradnn.compare.figure import comparison_figure
from paradnn.compare.text import round_table, sentences, verdict_table
from paradnn.record.record import image
from paradnn.session.course import Conclusion

__all__ = ["RecordedComparison"]


class RecordedComparison(Comparison):
    """A comparison as a session follows it."""

    def conclusion(self) -> Conclusion:
        """The verdict so far; the metrics are those of the only point, or of all points together."""
        results = self.results()
        whole = self.overall() or results[0]
        metrics = {"comparison_rounds": float(len(whole.rounds))}
        if found := whole.estimate:
            metrics |= {"speed_ratio": found.ratio, "speed_ratio_low": found.low, "speed_ratio_high": found.high}
        artifacts = {"verdicts.json": verdict_table(self), "rounds.json": round_table(self)}
        if any(result.rounds for result in results):
            artifacts["comparison.png"] = image(comparison_figure(self))
        return Conclusion("\n".join(f"- **{line}**" for line in sentences(self)), metrics, {}, artifacts, True)
