"""How long and how much: the whole run within eight minutes, or a quick look at the form of everything."""

from __future__ import annotations

from typing import Final

import msgspec


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the measurements; seconds and counts."""

    hop_rounds: int = 8
    hop_samples: int = 128
    hop_pace_ms: float = 20.0
    idle_s: float = 5.0
    idle_listeners: int = 50
    idle_puts: int = 40
    bulk_messages: int = 96_000
    bulk_s: float = 8.0
    backlog: int = 1_000_000
    single_s: float = 1.5
    ingest_rate: int = 1_000
    ingest_s: float = 20.0
    ingest_peak_s: float = 10.0
    ingest_connections: int = 512
    ingest_steps: int = 7
    ingest_step_s: float = 2.0
    ingest_over_s: float = 5.0
    ingest_over_connections: int = 4_096
    intake_rounds: int = 12
    intake_s: float = 1.0
    auth_rounds: int = 8
    auth_s: float = 1.5
    sessions: int = 10_000
    growth: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    sessions_s: float = 25.0
    store_s: float = 1.0
    store_rounds: int = 2
    burst: int = 100_000
    burst_mqtt: int = 20_000
    burst_rounds: int = 4
    stream_s: float = 10.0
    wake_samples: int = 100
    wake_rounds: int = 5
    cluster_repeats: int = 30
    pressure_s: float = 2.0
    pressure_connections: tuple[int, ...] = (1, 8, 64)
    pressure_rounds: int = 2
    pinned_rows: tuple[int, ...] = (0, 50_000, 150_000)
    pinned_rate: int = 800
    pinned_s: float = 6.0
    fan_out: int = 1_000
    fan_out_s: float = 1.5
    fan_out_rounds: int = 6
    azure_messages: int = 320
    azure_laps: int = 3
    azure_sdk: int = 100
    azure_rounds: int = 9
    quiet_queues: int = 10_000
    zero_rounds: int = 20
    zero_burst: int = 10_000
    zero_idle_s: float = 2.0
    zero_sleep_s: float = 600.0
    peers_rounds: int = 3
    peers_samples: int = 40
    peers_pause_s: float = 0.5
    peers_idle_s: float = 600.0
    wire_gaps_s: tuple[float, ...] = (0.5, 15.0, 60.0)
    wire_samples: tuple[int, ...] = (160, 16, 6)


FULL: Final = Scale()
QUICK: Final = Scale(
    hop_rounds=1,
    hop_samples=6,
    hop_pace_ms=2.0,
    idle_s=0.2,
    idle_listeners=3,
    idle_puts=2,
    bulk_messages=640,
    bulk_s=0.3,
    backlog=640,
    single_s=0.1,
    ingest_rate=100,
    ingest_s=0.3,
    ingest_peak_s=0.3,
    ingest_connections=16,
    ingest_steps=2,
    ingest_step_s=0.2,
    ingest_over_s=0.2,
    ingest_over_connections=64,
    intake_rounds=1,
    intake_s=0.2,
    auth_rounds=1,
    auth_s=0.2,
    sessions=20,
    sessions_s=0.5,
    store_s=0.1,
    store_rounds=1,
    growth=(10, 100),
    burst=2_000,
    burst_mqtt=500,
    burst_rounds=1,
    stream_s=0.3,
    wake_samples=6,
    wake_rounds=1,
    cluster_repeats=3,
    pressure_s=0.2,
    pressure_connections=(1, 4),
    pressure_rounds=1,
    pinned_rows=(0, 200),
    pinned_rate=50,
    pinned_s=0.3,
    fan_out=20,
    fan_out_s=0.2,
    fan_out_rounds=1,
    azure_messages=32,
    azure_laps=1,
    azure_sdk=4,
    azure_rounds=1,
    quiet_queues=200,
    zero_rounds=1,
    zero_burst=320,
    zero_idle_s=0.2,
    zero_sleep_s=1.0,
    peers_rounds=1,
    peers_samples=4,
    peers_pause_s=0.1,
    peers_idle_s=2.0,
    wire_gaps_s=(0.03,),
    wire_samples=(4,),
)
