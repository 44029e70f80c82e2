"""KEDA's messages, made of their field numbers as the external scaler's protocol has them.

In a pool of their own and not generated: a program that has KEDA's own classes loaded may run a bridge as well, and no
file here is bound to one release of protobuf.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE: Final = "externalscaler"
SERVICE: Final = f"{PACKAGE}.ExternalScaler"

_FIELDS: Final = {
    "ScaledObjectRef": "1 name string, 2 namespace string, 3 scalerMetadata map",
    "IsActiveResponse": "1 result bool",
    "MetricSpec": "1 metricName string, 2 targetSize int64, 3 targetSizeFloat double",
    "GetMetricSpecResponse": "1 metricSpecs MetricSpec*",
    "GetMetricsRequest": "1 scaledObjectRef ScaledObjectRef, 2 metricName string",
    "MetricValue": "1 metricName string, 2 metricValue int64, 3 metricValueFloat double",
    "GetMetricsResponse": "1 metricValues MetricValue*",
}
_ENTRY: Final = "ScalerMetadataEntry"
_TYPES: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}


def _add(message: DescriptorProto, text: str) -> None:
    number, name, kind = text.split()
    field = message.field.add(name=name, number=int(number), label=FieldDescriptorProto.LABEL_OPTIONAL)
    if kind == "map":
        # A map is a repeated message of keys and values.
        entry = message.nested_type.add(name=_ENTRY)
        entry.options.map_entry = True
        _add(entry, "1 key string")
        _add(entry, "2 value string")
        kind = f"{message.name}.{_ENTRY}*"
    if kind.endswith("*"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind.rstrip('*')}"


def classes() -> dict[str, Any]:
    """Make the classes of all messages, by name."""
    file = FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            _add(message, field)
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS}


_made: Final = classes()
ScaledObjectRef: Final = _made["ScaledObjectRef"]
IsActiveResponse: Final = _made["IsActiveResponse"]
GetMetricSpecResponse: Final = _made["GetMetricSpecResponse"]
GetMetricsRequest: Final = _made["GetMetricsRequest"]
GetMetricsResponse: Final = _made["GetMetricsResponse"]
