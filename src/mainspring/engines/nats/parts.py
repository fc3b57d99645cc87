"""The parts of the engine, put together: who needs whom."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.clock import Clock
from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.arriving import Arrivals, Inheritance, Receipts
from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.commands import Commands
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hands, Stops
from mainspring.engines.nats.intake import Intake
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.queueing import Lanes, Queueing
from mainspring.engines.nats.reading import Backlogs, Reading, WhatWaits
from mainspring.engines.nats.repair import Overlooked, Reaping, Rescuing
from mainspring.engines.nats.scheduling import Scheduling
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.settling import Settling
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.submitting import Submitting
from mainspring.engines.nats.taking import Deciding, Starting, Taking
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import Workshop
from mainspring.jobs.projecting import Projection


class Parts:
    """Everything that the verbs of the engine are made of."""

    def __init__(
        self,
        servers: list[str],
        settings: NatsSettings,
        clock: Clock,
        *,
        make_projection: Callable[[str], Projection],
        wake: Callable[[], None],
    ) -> None:
        self.names = names = Names(settings.prefix)
        self.link = link = Link(servers, settings, names.stream, clock)
        self.streams = streams = Streams(link, names, settings)
        self.workshop = workshop = Workshop(link, names)
        self.lanes = lanes = Lanes(names)
        self.hands = hands = Hands()
        self.journal = journal = Journal(link, names)
        self.book = book = SettingsBook(workshop)
        self.gates = gates = Gates(book)
        queueing = Queueing(gates, lanes)
        self.workers = workers = Workers(link, names, settings)
        self.intake = intake = Intake(link, names, wake, streams.forget_consumers)
        self.submitting = submitting = Submitting(workshop, queueing, journal)
        self.commands = Commands(queueing=queueing, submitting=submitting, journal=journal)
        self.scheduling = Scheduling(workshop, submitting, self.commands, journal)
        self.settling = Settling(
            workshop, hands, submitting=submitting, queueing=queueing, gates=gates, journal=journal
        )
        self.rescuing = Rescuing(workshop, workers, queueing=queueing, gates=gates, journal=journal)
        self.chores = Chores(
            workshop,
            streams,
            intake,
            gates=gates,
            queueing=queueing,
            journal=journal,
            wake=wake,
        )
        workshop.on_end = uniqueness.release_later
        self.stops = Stops(workshop, hands)
        deciding = Deciding(
            hands=hands,
            book=book,
            gates=gates,
            queueing=queueing,
            workers=workers,
            rescuing=self.rescuing,
            chores=self.chores,
            journal=journal,
        )
        self.taking = Taking(
            workshop,
            streams,
            intake,
            hands,
            lanes,
            deciding=deciding,
            book=book,
            gates=gates,
            queueing=queueing,
            workers=workers,
            chores=self.chores,
            stops=self.stops,
        )
        self.waiting = WhatWaits(workshop, streams, lanes, book)
        self.overlooked = Overlooked(workshop, streams, lanes, queueing)
        self.backlogs = Backlogs(workshop, streams)
        self.starting = Starting(workshop, hands, book, journal)
        self.projector = Projector(link, names, streams, make_projection)
        self.reading = Reading(workshop, self.projector, gates=gates, book=book)
        self.reaping = Reaping(
            workshop, self.projector, queueing=queueing, rescuing=self.rescuing, workers=workers
        )
        self.receipts = Receipts(workshop, workers)
        self.arrivals = Arrivals(workshop, self.receipts, queueing=queueing, gates=gates)
        self.inheritance = Inheritance(
            workshop, self.receipts, gates=gates, agenda=self.scheduling.agenda, book=book
        )
