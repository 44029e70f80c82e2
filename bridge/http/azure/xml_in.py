"""Reading the XML of requests: small, flat documents, and no trick of the language.

A document type, an entity of one's own, a processing instruction or a comment has no use here and has been a way to
attack every reader that takes them, so that expat stops at the first of them.
"""

from __future__ import annotations

import re
from xml.parsers import expat

from bridge.http.azure.errors import AzureError

DEPTH_MAX = 8
NODES_MAX = 500

# A message as every SDK writes it, its text in ASCII and without a reference: read as the parser reads it, at a tenth
# of the price. Whatever is written in another way, or wrongly, is the parser's. No part can match what the next does.
_plain = re.compile(
    rb"""(?:<\?xml[ ]version=(?:"1\.0"|'1\.0')
        (?:[ ]encoding=(?:"(?:utf|UTF)-8"|'(?:utf|UTF)-8'))?(?:[ ]standalone=(?:"yes"|'yes'))?[ ]?\?>)?
    [ \t\r\n]*<QueueMessage>[ \t\r\n]*<MessageText>
    ([\t\n\x20-\x25\x27-\x3b\x3d-\x7f]*)
    </MessageText>[ \t\r\n]*</QueueMessage>[ \t\r\n]*""",
    re.VERBOSE,
).fullmatch


class Element:
    """An element: its name, the text directly in it, and its children."""

    __slots__ = ("children", "name", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.children: list[Element] = []

    def child(self, name: str) -> Element | None:
        """Return the first child of a name, or None."""
        for each in self.children:
            if each.name == name:
                return each
        return None

    def required(self, name: str) -> Element:
        """Return that child; raises `AzureError` (``MissingRequiredXmlNode``) where there is none."""
        found = self.child(name)
        if found is None:
            raise AzureError("MissingRequiredXmlNode", details={"XmlNodeName": name})
        return found


class _Reader:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._nodes = 0
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = _refuse
        parser.EntityDeclHandler = _refuse
        parser.ProcessingInstructionHandler = _refuse
        parser.CommentHandler = _refuse

    def read(self, raw: bytes) -> Element:
        try:
            self._parser.Parse(raw, True)
        except (expat.ExpatError, LookupError, ValueError):
            raise AzureError("InvalidXmlDocument") from None
        assert self.root is not None
        return self.root

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        element = Element(name)
        self._nodes += 1
        if self._nodes > NODES_MAX or len(self._open) >= DEPTH_MAX:
            raise AzureError("InvalidXmlDocument")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        self._open[-1].text += text


def wrong(name: str) -> AzureError:
    """Return the refusal of an element whose text cannot be."""
    return AzureError("InvalidXmlNodeValue", details={"XmlNodeName": name})


def parse(raw: bytes) -> Element:
    """Return the root of a document; raises `AzureError` (``InvalidXmlDocument``) for what is none or holds a trick.

    Attributes are ignored, for no operation of this service gives them a meaning.
    """
    return _Reader().read(raw)


def message_text(raw: bytes) -> str:
    """Return the text of ``<QueueMessage><MessageText>...</MessageText></QueueMessage>``, character by character.

    Raises `AzureError`: ``InvalidXmlDocument``, ``MissingRequiredXmlNode`` or ``InvalidXmlNodeValue``.
    """
    plain = _plain(raw)
    if plain is not None and b"]]>" not in raw:
        return plain[1].decode("ascii")
    return parsed_text(raw)


def parsed_text(raw: bytes) -> str:
    """Return the same by the parser alone, whatever the form of the document."""
    root = parse(raw)
    if root.name != "QueueMessage":
        raise AzureError("InvalidXmlDocument")
    text = root.child("MessageText")
    if text is None:
        raise AzureError("MissingRequiredXmlNode", details={"XmlNodeName": "MessageText"})
    if text.children:
        raise AzureError("InvalidXmlNodeValue", details={"XmlNodeName": "MessageText"})
    return text.text


def _refuse(*_: object) -> None:
    raise AzureError("InvalidXmlDocument")
