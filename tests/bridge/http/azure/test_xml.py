"""The XML of the Azure endpoint, read and written."""

from __future__ import annotations

import datetime
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.http.azure import xml_in, xml_out
from bridge.http.azure.errors import AzureError
from bridge.queues.base import StoredMessage

_USING_B = b"<QueueMessage><MessageText>&b;</MessageText></QueueMessage>"
NOW = datetime.datetime(2008, 11, 13, 21, 37, 56, 999000, datetime.UTC)
_fit = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff", include_characters="\t\n\r")
)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("<QueueMessage><MessageText>a</MessageText></QueueMessage>", "a"),
        ("<QueueMessage><MessageText></MessageText></QueueMessage>", ""),
        ("<QueueMessage><MessageText/></QueueMessage>", ""),
        ("<QueueMessage>\n <Other/><MessageText> &lt;a&#x41; </MessageText>\n</QueueMessage>", " <aA "),
        ("<QueueMessage><MessageText><![CDATA[<x>]]></MessageText></QueueMessage>", "<x>"),
        (
            "<?xml version='1.0' encoding='utf-8'?><QueueMessage><MessageText>\u00e9</MessageText></QueueMessage>",
            "\u00e9",
        ),
        ("\ufeff<QueueMessage><MessageText>bom</MessageText></QueueMessage>", "bom"),
    ],
)
def test_the_text_of_a_put(raw: str, text: str) -> None:
    """Character by character, with the references and sections that XML has."""
    assert xml_in.message_text(raw.encode()) == text


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "InvalidXmlDocument"),
        (b"text", "InvalidXmlDocument"),
        (b"<QueueMessage>", "InvalidXmlDocument"),
        (b"<Other/>", "InvalidXmlDocument"),
        (b"<QueueMessage/>", "MissingRequiredXmlNode"),
        (b"<QueueMessage><MessageText><b/></MessageText></QueueMessage>", "InvalidXmlNodeValue"),
        (b"<QueueMessage><MessageText>\x01</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<QueueMessage><MessageText>&#0;</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<QueueMessage><MessageText>\xff</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<QueueMessage><MessageText>&nbsp;</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<?xml version='1.0' encoding='no-such'?><QueueMessage/>", "InvalidXmlDocument"),
        (b"<!DOCTYPE q><QueueMessage><MessageText>a</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b'<!DOCTYPE q [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;">]>' + _USING_B, "InvalidXmlDocument"),
        (b'<!DOCTYPE q [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + _USING_B, "InvalidXmlDocument"),
        (b"<?pi x?><QueueMessage><MessageText>a</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<QueueMessage><!-- c --><MessageText>a</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<a>" * 9 + b"</a>" * 9, "InvalidXmlDocument"),
        (b"<a>" + b"<b/>" * 600 + b"</a>", "InvalidXmlDocument"),
    ],
)
def test_what_is_no_put(raw: bytes, code: str) -> None:
    """Malformed, of another form, or a trick of the language: no entity is ever looked up or grown."""
    with pytest.raises(AzureError) as refused:
        xml_in.message_text(raw)
    assert refused.value.code == code


_DECLARATIONS = [
    "",
    "<?xml version='1.0' encoding='utf-8'?>",
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>',
    '<?xml version="1.0"?>',
    "<?xml version='1.0\" ?>",
    "<?xml version='1.1'?>",
    "<?xml version='1.0' encoding='latin-1'?>",
    "\ufeff",
]
_blank = st.text(" \t\r\n", max_size=2)
_text = st.lists(
    st.one_of(
        st.characters(codec="ascii"),
        st.characters(codec="utf-8"),
        st.sampled_from(
            ["]]>", "]", ">", "&amp;", "&#65;", "<b/>", "<!-- -->", "</MessageText>", "<![CDATA[x]]>", "\r\n"]
        ),
    ),
    max_size=6,
).map("".join)


@given(st.sampled_from(_DECLARATIONS), st.lists(_blank, min_size=4, max_size=4), _text, st.booleans())
@example("", [""] * 4, "]]>", False)
@example("", [""] * 4, "\r", False)
@example(" " + _DECLARATIONS[1], [""] * 4, "a", False)
def test_the_quick_way_reads_what_the_parser_reads(declaration: str, blanks: list[str], text: str, cut: bool) -> None:
    """A message in the usual form is read without the parser, and to the same text or the same refusal."""
    one, two, three, four = blanks
    document = f"{one}<QueueMessage>{two}<MessageText>{text}</MessageText>{three}</QueueMessage>{four}"
    raw = (declaration + document).encode()[: -1 if cut else None]
    assert _outcome(xml_in.message_text, raw) == _outcome(xml_in.parsed_text, raw)


def _outcome(read: Callable[[bytes], str], raw: bytes) -> tuple[str, str]:
    try:
        return "text", read(raw)
    except AzureError as error:
        return "refused", error.code


@pytest.mark.parametrize("declaration", ["", _DECLARATIONS[1] + "\n", _DECLARATIONS[2]])
def test_what_the_sdks_send_needs_no_parser(declaration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms of the .NET, Python and JavaScript SDKs take the quick way."""
    monkeypatch.delattr(xml_in, "parse")
    raw = f"{declaration}<QueueMessage><MessageText>b3JkZXIgMTc=</MessageText></QueueMessage>".encode()
    assert xml_in.message_text(raw) == "b3JkZXIgMTc="


@given(_fit)
@example("a\r\nb\rc\td ")
def test_text_comes_back_as_it_went_in(text: str) -> None:
    """Whatever XML can hold is shown as it is, and another reader reads exactly that."""
    message = StoredMessage("0" * 16, "r", text.encode(), 1, NOW, None)
    (element,) = ET.fromstring(xml_out.received([message], ["i"], ["r"], 0))
    assert (element.findtext("MessageText") or "") == text


@given(st.binary(max_size=200))
def test_every_body_is_well_formed(body: bytes) -> None:
    """Bytes that XML cannot hold are shown in base64; the answer can be read whatever was put."""
    (element,) = ET.fromstring(xml_out.peeked([StoredMessage("0" * 16, "", body, 0, NOW, NOW)], ["i"], 1000))
    assert (element.findtext("MessageText") or "") == xml_out.body_text(body)


def test_times() -> None:
    """RFC 1123, fractions cut off; never is the last second that a date has."""
    assert xml_out.moment_date(NOW) == "Thu, 13 Nov 2008 21:37:56 GMT"
    assert xml_out.http_date(1_226_612_276_999) == "Thu, 13 Nov 2008 21:37:56 GMT"
    assert xml_out.moment_date(None) == "Fri, 31 Dec 9999 23:59:59 GMT"


def test_a_refusal_holds_nothing_raw() -> None:
    """What a request brought is escaped, and what XML cannot hold is replaced."""
    raw = xml_out.error("InvalidInput", "m", {"QueryParameterValue": "</Error>\0\udc80&"})
    assert ET.fromstring(raw).findtext("QueryParameterValue") == "</Error>??&"
    listing = xml_out.queues('http://h"<&/', [("Prefix", "<&>")], [("q", {"k": "<v>"})], "")
    root = ET.fromstring(listing)
    assert root.attrib["ServiceEndpoint"] == 'http://h"<&/'
    assert root.findtext("Queues/Queue/Metadata/k") == "<v>"
    assert root.findtext("NextMarker") is None or root.findtext("NextMarker") == ""
