"""What the programs of the documents leave out: names that a reader has, with their types, for `mypy --strict`."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from fastapi import FastAPI

from queuebell import Burial, Listener, Message, Pool, lifespan, open_store

__all__ = ["FastAPI", "Listener", "Pool", "asynccontextmanager", "asyncio", "lifespan", "open_store"]

URL = url = "http://127.0.0.1:8470"
bridge = "http://127.0.0.1:8470"
store = open_store(url)
media = open_store("sqs://eu-central-1")
app = web.Application()
small = b""
large = b""


class NoSuchCustomer(Exception):
    """A failure of theirs."""


class Order(msgspec.Struct):
    order_id: str
    parcels: list[str]


class Bank:
    charged: list[str]

    async def charge(self, message: Message) -> None:
        """Handle a message."""


class Row:
    pk: int

    def save(self) -> None:
        """Write it."""


class Task:
    def enqueue(self, number: int) -> None:
        """Put it."""


django_charge = Task()
bank = Bank()
order = Row()


async def charge(message: Message) -> None:
    """Handle a message."""


handle = send = scale = charge


async def post(parcel: str, *, idempotency_key: str) -> None:
    """Have an effect."""


async def report(body: bytes, burial: Burial | None) -> None:
    """Tell a person."""


async def refund(order: Order) -> None:
    """Compensate."""


def open_database() -> AbstractAsyncContextManager[Any]:
    raise NotImplementedError
