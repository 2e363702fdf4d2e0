"""Effects of sessions, hosts and order that do not cancel between two sides, and their variance.

The sides A and B are two compared sets of runs. A point is one configuration. A session is a series
of measurements taken in one go.

In the mean log ratio of P points, a run of side A has the weight +1/(P m), and a run of side B has
the weight -1/(P m). Here m is the number of runs of the same point on the same side. If several
runs share an effect, such as the effect of their session, it enters the mean with the sum of their
weights. Sessions therefore add the variance of one session times the sum over sessions of
(sum of weights)^2. This factor is 0 if both sides share all sessions, and 2 if each side has a
single session. The variance of a session is a posterior: the prior (`paradnn.statistics.priors`)
updated with the scatter of repeated sessions.

Arrays of runs contain the runs of A first, then the runs of B; n is the number of runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from paradnn.statistics.dependence import Component
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.lazy import np, pd, stats
from paradnn.statistics.priors import ScatterPriors, VariancePrior, classify_devices, scatter_priors
from paradnn.statistics.sessions import (
    assign_sessions,
    differ_by_time_of_day,
    follow_share,
    have_other_protocols,
    is_mixed,
    is_randomized,
    merge_into_turns,
)

#: After a longer pause, in hours, the next run counts as measured on a different day.
_DAY_GAP_HOURS = 4.0
#: Length of a session, in hours, at which its halves differ as much as two separate sessions.
#: Starts one or two hours apart differed as much as sessions (docs/validation/repeatability.md).
_FULL_DRIFT_HOURS = 2.0
#: Variance of a Brownian drift over a session, divided by the variance of a session. With 6, the
#: difference between the means of the two halves has the variance of two sessions: the integral of
#: F^2 in `Schedule.drift_weight` is 1/3 if one side is measured in each half.
_DRIFT_RATIO = 6.0
_TINY = 1e-300
#: Relative difference up to which two sums of weights count as equal.
_TIE = 1e-9


@dataclass(frozen=True)
class Effect:
    """Contribution of one source of scatter, such as sessions, to the variance of a log ratio.

    The ratio compares two sets of runs. A session is a series of measurements taken in one go.

    Attributes:
        name: The source, as text, such as "sessions".
        variance: Variance of the log ratio.
        freedom: Degrees of freedom of the variance.
        prior_share: Share of the degrees of freedom that the prior contributes, from 0 to 1.
    """

    name: str
    variance: float
    freedom: float
    prior_share: float = 0.0

    @property
    def component(self) -> Component:
        """The variance with its degrees of freedom."""
        return Component(self.variance, self.freedom)

    @property
    def half_width(self) -> float:
        """Half width of the 95% interval of the log ratio if this were the only effect."""
        return float(self.component.half_width)


def combine(parts: Sequence[Component]) -> Component:
    """Return the sum of independent variances, with its degrees of freedom.

    The degrees of freedom of the sum are Satterthwaite's. With the plain sum of the variances,
    adding a well-known variance to an uncertain one could narrow the 95% interval. The sum is
    therefore raised until the half width of the interval equals the root of the sum of the squared
    half widths (Zou and Donner, Statistics in Medicine 27, 2008).

    Args:
        parts: Independent variances with their degrees of freedom, numbers or arrays (k,).
    """
    variance = np.asarray(sum(part.variance for part in parts), dtype="float64")
    squares = np.asarray(sum(part.variance**2 / part.freedom for part in parts))
    least = np.min([np.broadcast_to(part.freedom, variance.shape) for part in parts], axis=0)
    freedom = np.where(squares > 0, variance**2 / np.maximum(squares, _TINY), least)
    half_width = np.sqrt(sum(part.half_width**2 for part in parts))
    quantile = stats.t.ppf((1 + LEVEL) / 2, freedom)
    return Component(np.maximum((half_width / quantile) ** 2, variance)[()], freedom[()])


def unit_scatter(logs: np.ndarray, cells: np.ndarray, units: np.ndarray) -> Component:
    """Estimate the variance of the effects of units, such as sessions, on runs.

    The model is additive: the logarithm of a run's value, such as its speed, is the effect of its
    cell plus the effect of its unit. The variance is computed from the sum of squares of units
    adjusted for cells (Henderson's method 3, Biometrics 9, 1953). It also contains the scatter
    between runs of the same unit, so it overestimates the variance of units.

    Args:
        logs: (n,) logarithms of the values of the runs.
        cells: (n,) number of the cell of each run, such as its point on its side.
        units: (n,) number of the unit of each run.

    Returns:
        The variance; its degrees of freedom are 0 if no cell was measured in two units.
    """
    cell = np.unique(cells, return_inverse=True)[1]
    unit = np.unique(units, return_inverse=True)[1]
    gram, moment = _adjusted_sums(logs, cell, unit)
    values, vectors = np.linalg.eigh(gram)
    is_known = values > 1e-9 * max(float(values.max(initial=0.0)), 1.0)
    freedom = int(is_known.sum())
    if not freedom:
        return Component(0.0, 0.0)
    projected = vectors[:, is_known].T @ moment
    squares = float(np.sum(projected**2 / values[is_known]))
    return Component(squares / float(values[is_known].mean()) / freedom, float(freedom))


def unit_effects(logs: np.ndarray, cells: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Estimate the effect of each run's unit, such as its session, on the run.

    The model is that of `unit_scatter`: the logarithm of a run's value, such as its speed, is the
    effect of its cell plus the effect of its unit.

    Args:
        logs: (n,) logarithms of the values of the runs.
        cells: (n,) number of the cell of each run, such as its point on its side.
        units: (n,) number of the unit of each run.

    Returns:
        (n,) the effects on the logarithms; 0 for units whose effect cannot be estimated.
    """
    cell = np.unique(cells, return_inverse=True)[1]
    unit = np.unique(units, return_inverse=True)[1]
    gram, moment = _adjusted_sums(logs, cell, unit)
    effects = np.linalg.pinv(gram, rcond=1e-9, hermitian=True) @ moment
    return np.asarray(effects[unit])


def _adjusted_sums(
    logs: np.ndarray, cell: np.ndarray, unit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal equations of the effects of units, such as sessions, adjusted for cells.

    Args:
        logs: (n,) logarithms of the values of the runs.
        cell: (n,) number of each run's cell, from 0.
        unit: (n,) number of each run's unit, from 0.

    Returns:
        The matrix (units, units) and the right-hand side (units,).
    """
    from scipy.sparse import coo_array

    units = int(unit.max(initial=-1)) + 1
    sizes = np.bincount(cell)
    ones = np.ones(len(cell))
    counts = coo_array((ones, (cell, unit)), shape=(len(sizes), units)).tocsr()
    shared = (counts.T @ counts.multiply(1 / sizes[:, None])).toarray()
    gram = np.diag(np.bincount(unit, minlength=units).astype("float64")) - shared
    centered = logs - (np.bincount(cell, logs) / sizes)[cell]
    return gram, np.bincount(unit, centered, minlength=units)


class SessionVariance(NamedTuple):
    """Variance between sessions: a prior, updated with the scatter of repeated sessions.

    A session is a series of measurements taken in one go.

    Attributes:
        variance: Variance of a session's effect on log step time.
        freedom: Degrees of freedom of the variance.
        prior_share: Share of the degrees of freedom that the prior contributes, from 0 to 1.
    """

    variance: float
    freedom: float
    prior_share: float = 1.0


@dataclass(frozen=True, eq=False)
class Schedule:
    """Time and place of the n runs of two compared sets of runs, the sides A and B.

    Attributes:
        side: (n,) 0 for a run of A, 1 for a run of B.
        point: (n,) number of the point (configuration) of each run.
        session: (n,) number of the session of each run, a series of measurements taken in one go.
        turn: (n,) number of the turn of each run. A turn consists of successive sessions of one
            side, up to the next session of the other side, because runs close in time are similar.
        host: (n,) number of the host of each run.
        driver: (n,) number of the driver of each run, the process that controls a sweep. Runs
            without a recorded session that overlap in time have different drivers.
        hours: (n,) start of each run in hours since 1970; NaN if it is unknown.
        is_random: Whether the order of all runs is known to be random.
        times_known: Whether the sessions of all runs are known.
        protocols_differ: Whether the sides have no timing protocol in common.
        time_of_day: Whether the sides were measured at different times of day.
        follow: P(B follows A) - P(A follows B) for successive runs of a point, from -1 to 1; 0 if
            the difference may be chance (see `follow_share`).
    """

    side: np.ndarray
    point: np.ndarray
    session: np.ndarray
    turn: np.ndarray
    host: np.ndarray
    driver: np.ndarray
    hours: np.ndarray
    is_random: bool
    times_known: bool
    protocols_differ: bool
    time_of_day: bool
    follow: float

    def __deepcopy__(self, memo: object) -> Schedule:
        """Return the schedule without copying it.

        Otherwise, pandas would copy the schedule with every slice of a frame.
        """
        return self

    @classmethod
    def of(cls, a: pd.DataFrame, b: pd.DataFrame, points: np.ndarray | None = None) -> Schedule:
        """Create the schedule of two sides from their recorded runs.

        Args:
            a: Runs of side A, one row per run. The columns `start_time`, `end_time`, `host`,
                `session_id` and `sweep_id` are used if present.
            b: Runs of side B, with the same columns.
            points: (n,) number of the point of each run, first of A, then of B; None if all runs
                have one point.
        """
        runs = pd.concat([a, b], ignore_index=True)
        side = np.repeat([0, 1], [len(a), len(b)])
        point = np.zeros(len(runs), dtype="int64")
        if points is not None:
            point = points
        known = assign_sessions(runs)
        times_known = all(session is not None for session in known)
        session = np.array(
            [name or f"unknown session of {'AB'[n]}" for name, n in zip(known, side, strict=True)],
            dtype=object,
        )
        times = np.full(len(runs), np.nan)
        if "start_time" in runs:
            start = runs["start_time"].to_numpy(dtype="datetime64[ns]")
            times = np.where(np.isnat(start), np.nan, start.astype("int64") / 3.6e12)
        if not times_known:
            times = np.full(len(runs), np.nan)
        session_code = pd.factorize(session)[0]
        host = session_code.astype(object)
        if "host" in runs:
            host = np.where(runs["host"].notna(), runs["host"].astype("object"), host)
        driver = session_code.astype(str).astype(object)
        if "session_id" in runs:
            names = runs["session_id"].astype("object").fillna("").to_numpy()
            driver = np.array([f"{n} {name}" for n, name in zip(session_code, names, strict=True)])
        driver = _separate_overlapping(driver, runs)
        time_of_day = False
        turn = session_code
        if np.isfinite(times).all() and len(runs):
            turn = merge_into_turns(session_code, side, times)
            time_of_day = differ_by_time_of_day(session_code, side, times)
        return cls(
            side=side,
            point=point,
            session=session_code,
            turn=turn,
            host=pd.factorize(host)[0],
            driver=pd.factorize(driver)[0],
            hours=times,
            is_random=is_randomized(runs),
            times_known=times_known,
            protocols_differ=have_other_protocols(a, b),
            time_of_day=time_of_day,
            follow=follow_share(runs, point, side, session_code),
        )

    def select(self, rows: np.ndarray) -> Schedule:
        """Return the schedule of a subset of the runs.

        Args:
            rows: Indices of the runs, or a mask (n,) of booleans.
        """
        if rows.dtype == bool and rows.all():
            return self  # reuse the cached weights
        return Schedule(
            side=self.side[rows],
            point=self.point[rows],
            session=self.session[rows],
            turn=self.turn[rows],
            host=self.host[rows],
            driver=self.driver[rows],
            hours=self.hours[rows],
            is_random=self.is_random,
            times_known=self.times_known,
            protocols_differ=self.protocols_differ,
            time_of_day=self.time_of_day,
            follow=self.follow,
        )

    @property
    def is_mixed(self) -> bool:
        """Whether both sides have runs whose order is, or may be, random."""
        if len(np.unique(self.side)) < 2:
            return False
        return self.is_random or is_mixed(self.side, self.hours)

    @cached_property
    def has_counterpart(self) -> np.ndarray:
        """(n,) whether the other side has a run of the same point in the same session."""
        table = pd.DataFrame({"point": self.point, "session": self.session, "side": self.side})
        sides = table.groupby(["point", "session"])["side"].transform("nunique")
        return np.asarray(sides.eq(2).to_numpy())

    @cached_property
    def weights(self) -> np.ndarray:
        """(n,) weight of each run in the mean log ratio over the points; negative for side B."""
        cell = 2 * pd.factorize(self.point)[0] + self.side
        counts = np.bincount(cell)
        points = max(len(np.unique(self.point)), 1)
        signs = 1.0 - 2.0 * self.side
        return np.asarray(signs / counts[cell] / points)

    @cached_property
    def session_weight(self) -> float:
        """Variance that sessions add to the mean log ratio, divided by the variance of a session.

        It is the sum over turns of (sum of weights)^2, or the same sum over hosts if it is larger.
        A turn consists of successive sessions of one side. The effect of a host does not average
        out, however many sessions it measures.
        """
        return max(
            _squared_sums(self.turn, self.weights),
            _squared_sums(self.host, self.weights),
        )

    @property
    def units(self) -> np.ndarray:
        """(n,) number of the turn of each run, or of its host if hosts contribute more variance.

        A turn consists of successive sessions of one side. Runs with the same number count as one
        session. Turns that share a host are not independent samples of the scatter.
        `session_weight` defines the contributions of turns and hosts.
        """
        of_hosts = _squared_sums(self.host, self.weights)
        of_turns = _squared_sums(self.turn, self.weights)
        if of_hosts > _TIE and of_hosts >= (1 - _TIE) * of_turns:
            return self.host
        return self.turn

    @cached_property
    def drift_weight(self) -> float:
        """Variance of the mean log ratio from drifts, divided by the variance of a session.

        A drift is a slow change of speed during a session. It matters only if a session measured
        side A and side B in separate blocks. The model of a drift is a Brownian motion W(t).

        Let F(t) be the share of A's runs up to time t, minus that of B's runs. A drift then adds
        the integral of F dW to the mean log ratio. The variance of this integral is proportional to
        the integral of F^2 dt. It is limited to the variance of two sessions.
        """
        if self.is_random or not np.isfinite(self.hours).all():
            return 0.0
        total = 0.0
        for rows in _groups(self.session):
            side = self.side[rows]
            hours = self.hours[rows]
            if len(np.unique(side)) < 2 or is_mixed(side, hours):
                continue
            weights = self.weights[rows]
            shares = np.array([weights[side == 0].sum(), -weights[side == 1].sum()])
            scaled = np.where(side == 0, weights / shares[0], weights / shares[1])
            drift = float(drift_weights(scaled[None], hours)[0])
            total += shares.min() ** 2 * min(drift, 2.0)
        return total

    @cached_property
    def order_weight(self) -> float:
        """Variance that the order of the sides adds, divided by the variance of an order effect.

        It is close to 1 if the same side comes first on each of many days. Repetition in the same
        order does not average this effect out. The weight is 0 for a single day, because the
        variance of sessions covers the effect.
        """
        if self.is_random or not np.isfinite(self.hours).all() or not len(self.hours):
            return 0.0
        order = np.argsort(self.hours, kind="stable")
        day = np.zeros(len(order), dtype="int64")
        day[order] = np.cumsum(
            np.diff(self.hours[order], prepend=self.hours[order[0]]) > _DAY_GAP_HOURS
        )
        mean = 0.0
        days = 0
        for rows in _groups(day):
            side = self.side[rows]
            if len(np.unique(side)) < 2:
                continue
            hours = self.hours[rows]
            weights = self.weights[rows]
            size = min(weights[side == 0].sum(), -weights[side == 1].sum())
            days += 1
            if not is_mixed(side, hours):
                mean += size * _precedence(hours[side == 0], hours[side == 1])
        weight = 0.0
        if days > 1:
            weight = (1 - 1 / days) * mean**2
        if self.time_of_day:
            sessions = min(len(np.unique(self.session[self.side == n])) for n in (0, 1))
            weight = max(weight, 1 - 1 / sessions)
        return weight

    def effects(self, session: SessionVariance, priors: ScatterPriors) -> list[Effect]:
        """Return the effects that do not cancel between the sides, such as those of sessions.

        The possible sources are sessions, order, position, drivers and timing protocol. Each effect
        contains its contribution to the variance of the mean log ratio of these runs.

        Args:
            session: Variance of a session's effect.
            priors: Prior variances of all other effects.
        """
        effects = []

        def add(name: str, weight: float, prior: VariancePrior) -> None:
            if weight > 1e-9:
                posterior = prior.update()
                effects.append(Effect(name, weight * posterior.variance, posterior.freedom, 1.0))

        apart = self.session_weight + self.drift_weight
        if apart > 1e-9:
            variance = apart * session.variance
            effects.append(Effect("sessions", variance, session.freedom, session.prior_share))
        add("order", self.order_weight, priors.order)
        add("position", self.follow**2, priors.position)
        within = _squared_sums(self.driver, self.weights) - _squared_sums(
            self.session, self.weights
        )
        add("drivers", within, priors.driver)
        add("protocol", float(self.protocols_differ), priors.protocol)
        return effects

    def point_weights(self) -> pd.Series:
        """Return the variance that sessions and drifts add to the log ratio of each single point.

        It is divided by the variance of a session. Each point is compared separately, using only
        the runs of this point.

        Returns:
            The sums of `session_weight` and `drift_weight`, indexed by the number of the point.
        """
        cell = 2 * self.point.astype("int64") + self.side
        counts = pd.Series(cell).groupby(cell).transform("size").to_numpy()
        weights = (1.0 - 2.0 * self.side) / counts
        table = pd.DataFrame({"point": self.point, "weight": weights})
        found = []
        for labels in (self.turn, self.host):
            sums = table["weight"].groupby([self.point, labels]).sum() ** 2
            found.append(sums.groupby(level=0).sum())
        # In a session that measured the sides in blocks, a point has the drift of the whole family.
        return pd.concat(found, axis=1).max(axis=1) + self.drift_weight


def drift_weights(weights: np.ndarray, hours: np.ndarray) -> np.ndarray:
    """Return the variances that a drift adds to weighted sums of the runs of one session.

    The drift is modeled as a Brownian motion W. The sum of w_i W(t_i) is the integral of F dW,
    where F(t) is the sum of the weights of the runs after t.

    Args:
        weights: (k, n) weights of the runs in k sums.
        hours: (n,) start of each run in hours.

    Returns:
        (k,) variances of the sums, divided by the variance of a session.
    """
    order = np.argsort(hours, kind="stable")
    length = float(np.ptp(hours))
    if not length > 0:
        return np.zeros(len(weights))
    following = np.cumsum(weights[:, order[::-1]], axis=1)[:, -2::-1]
    squared = (following**2 @ np.diff(hours[order])) / length
    return np.asarray(_DRIFT_RATIO * min(length / _FULL_DRIFT_HOURS, 1.0) * squared)


def learn_session_variance(
    logs: np.ndarray, schedule: Schedule, priors: ScatterPriors
) -> SessionVariance:
    """Estimate the variance between sessions: the prior, updated with repeated sessions.

    A session is a series of measurements taken in one go.

    Args:
        logs: (n,) logarithms of the speeds of the runs. If empty, the prior is returned.
        schedule: The point, side, session and host of each run.
        priors: Priors of the scatter. Only the prior of sessions is used.
    """
    if not len(logs):
        return SessionVariance(*priors.session.update())
    cells = 2 * schedule.point.astype("int64") + schedule.side
    scatter = unit_scatter(logs, cells, schedule.units)
    posterior = priors.session.update(scatter.variance, scatter.freedom)
    return SessionVariance(*posterior, 1 - scatter.freedom / posterior.freedom)


def learn_priors(runs: pd.DataFrame, priors: ScatterPriors) -> ScatterPriors:
    """Update the priors of the scatter of a machine with other runs of this machine.

    Only two priors are updated: those of the effects of a process and of a session, a series of
    measurements taken in one go.

    Args:
        runs: Runs that are not part of the current comparison. Only runs with a positive
            `examples_per_second` and a known session contribute.
        priors: The priors before the update.
    """
    if "examples_per_second" not in runs or not len(runs):
        return priors
    logs = np.log(runs["examples_per_second"].to_numpy(dtype="float64"))
    known = assign_sessions(runs)
    usable = np.isfinite(logs) & np.array([session is not None for session in known])
    if not usable.any():
        return priors
    logs = logs[usable]
    point = pd.factorize(runs["point_id"].to_numpy()[usable])[0]
    session = pd.factorize(known[usable])[0]
    cell = pd.factorize(pd.MultiIndex.from_arrays([point, session]))[0]
    rest = logs - (np.bincount(cell, logs) / np.bincount(cell))[cell]
    processes = np.ones(len(logs))
    if "processes" in runs:
        recorded = runs["processes"].to_numpy(dtype="float64", na_value=1.0)[usable]
        processes = np.maximum(recorded, 1.0)
    freedom = float(len(logs) - cell.max() - 1)
    variance = 0.0
    if freedom > 0:
        variance = float(np.sum(processes * rest**2)) / freedom
    scatter = unit_scatter(logs, point, session)
    if freedom + scatter.freedom <= 0:
        return priors
    return replace(
        priors,
        process=priors.process.learn(variance, freedom),
        session=priors.session.learn(scatter.variance, scatter.freedom),
        is_learned=True,
    )


def interaction_effect(
    logs: np.ndarray, schedule: Schedule, priors: ScatterPriors
) -> Effect | None:
    """Return how much the log ratio of two sides varies from session to session.

    This variation is the interaction of sessions and sides. The log ratio of a session is the mean
    log speed of side A minus the mean log speed of side B.

    In each session, each side has separate worker processes. The memory layout of a worker shifts
    all runs of one side in this session. Only sessions that measured both sides reveal this effect.

    Args:
        logs: (n,) logarithms of the speeds of the runs, such as examples per second.
        schedule: The point, side and session of each run.
        priors: Priors of the scatter of repeated measurements.

    Returns:
        The effect on the mean log ratio; None if fewer than two sessions measured both sides.
    """
    rows = schedule.has_counterpart
    if not rows.any():
        return None
    table = pd.DataFrame(
        {
            "point": schedule.point[rows],
            "session": schedule.session[rows],
            "side": schedule.side[rows],
            "log": logs[rows],
        }
    )
    means = table.groupby(["point", "session", "side"])["log"].mean().unstack("side")
    ratios = (means[0] - means[1]).reset_index(name="log")
    sessions = pd.factorize(ratios["session"])[0]
    if sessions.max() < 1:
        return None
    scatter = unit_scatter(ratios["log"].to_numpy(), ratios["point"].to_numpy(), sessions)
    posterior = priors.interaction.update(scatter.variance, scatter.freedom)
    weights = 1 / ratios.groupby("point")["session"].transform("size") / ratios["point"].nunique()
    weight = _squared_sums(sessions, weights.to_numpy())
    share = 1 - scatter.freedom / posterior.freedom
    return Effect("sessions and sides", weight * posterior.variance, posterior.freedom, share)


def side_effects(
    a: pd.DataFrame,
    b: pd.DataFrame,
    points: np.ndarray | None = None,
    logs: np.ndarray | None = None,
) -> list[Effect]:
    """Return the effects of sessions, hosts and order on the mean log ratio of two sides.

    Use this function in comparisons that do not pair runs with `analysis.pairing.pair`. To compute
    the interval of a log ratio, pass the components of these effects and the scatter of the runs to
    `combine`.

    Args:
        a: Runs of side A, one row per run, as for `Schedule.of`.
        b: Runs of side B.
        points: (n,) number of the point (configuration) of each run, first of A, then of B; None if
            all runs have one point.
        logs: (n,) logarithms of the measurements, first of A, then of B. They update the variance
            of sessions. None to use only the prior.
    """
    schedule = Schedule.of(a, b, points)
    priors = scatter_priors(classify_devices(a, b))
    session = SessionVariance(*priors.session.update())
    effects = []
    if logs is not None:
        session = learn_session_variance(logs, schedule, priors)
        shared = interaction_effect(logs, schedule, priors)
        if shared is not None:
            effects.append(shared)
    return [*schedule.effects(session, priors), *effects]


def _separate_overlapping(driver: np.ndarray, runs: pd.DataFrame) -> np.ndarray:
    """Return labels (n,) of drivers such that no two runs with the same label overlap in time.

    A driver, the process that controls a sweep, measures points one after another. If runs with the
    same label overlap, each run is assigned to the driver whose last run ended most recently before
    the start of the run. If every driver is busy, the run is assigned to a new driver. Runs with a
    recorded session keep their label.

    Args:
        driver: (n,) label of each run by session.
        runs: The n runs, with start and end where they are known.
    """
    if "end_time" not in runs or "start_time" not in runs:
        return driver
    start, end = (
        runs[name].to_numpy(dtype="datetime64[ns]") for name in ("start_time", "end_time")
    )
    is_open = ~(np.isnat(start) | np.isnat(end))
    if "session_id" in runs:
        is_open &= (runs["session_id"].fillna("").astype(str) == "").to_numpy()
    separate = driver.astype(object)
    for rows in _groups(pd.factorize(driver)[0]) if is_open.any() else ():
        rows = rows[is_open[rows]]
        rows = rows[np.argsort(start[rows], kind="stable")]
        if not (start[rows][1:] < end[rows][:-1]).any():
            continue
        last_ends: list[np.datetime64] = []
        for row in rows:
            free = [number for number, last_end in enumerate(last_ends) if last_end <= start[row]]
            if free:
                task = max(free, key=lambda number: last_ends[number])
                last_ends[task] = end[row]
            else:
                task = len(last_ends)
                last_ends.append(end[row])
            separate[row] = f"{driver[row]}, task {task}"
    return separate


def _squared_sums(labels: np.ndarray, weights: np.ndarray) -> float:
    """Add the weights of each label, and return the sum of the squares of these totals.

    Args:
        labels: (n,) label of each element, such as the session of a run.
        weights: (n,) weight of each element.
    """
    if not len(labels):
        return 0.0
    return float(np.sum(np.bincount(labels, weights) ** 2))


def _groups(labels: np.ndarray) -> list[np.ndarray]:
    """Return one array per distinct label: the indices of the elements that have this label."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _precedence(a: np.ndarray, b: np.ndarray) -> float:
    """Return how often runs of A precede runs of B, from -1 (never) to 1 (always).

    The result is P(a run of A precedes a run of B) - P(a run of B precedes a run of A).

    Args:
        a: Start times of the runs of A, in any unit.
        b: Start times of the runs of B, in the same unit.
    """
    ranks: Any = stats.rankdata(np.concatenate([a, b]))
    above = ranks[: len(a)].sum() - len(a) * (len(a) + 1) / 2
    return float(1 - 2 * above / (len(a) * len(b)))


def selection_bias(lost: tuple[int, int], kept: tuple[int, int]) -> float:
    """Return the largest bias that lost replicates may cause in the difference of two means.

    Replicates are repeated runs of the same configuration. They are lost if they fail. In the worst
    case, the slowest replicates were lost. If the share f was lost, the remaining replicates have a
    normal distribution truncated above its (1 - f) quantile z. Truncation lowers the mean by phi(z)
    / (1 - f) standard deviations. If both sides lose the same share, the biases cancel.

    Args:
        lost: Numbers of lost replicates of A and of B.
        kept: Numbers of remaining replicates of A and of B.

    Returns:
        The bias in standard deviations of a replicate, not negative.
    """
    shifts = []
    for number, rest in zip(lost, kept, strict=True):
        share = number / max(number + rest, 1)
        shift = 0.0
        if 0 < share < 1:
            shift = float(stats.norm.pdf(stats.norm.ppf(1 - share))) / (1 - share)
        shifts.append(shift)
    return math.fabs(shifts[0] - shifts[1])
