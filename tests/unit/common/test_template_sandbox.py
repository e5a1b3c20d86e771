"""What chat templates may not do: make much of little, neither when compiled nor when laid out."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from services.common.errors import CorruptData, InvalidRequest
from services.common.text.chat_template import compile_template
from services.gateway.chat import ChatTemplate, Message


def looping(body: str, start: str = "'ab'") -> str:
    """A template that goes on from what it made before."""
    return (
        "{% set ns = namespace(x=" + start + ") %}{% for a in range(99) %}" + body + "{% endfor %}{{ ns.x }}"
    )


COSTLY = [
    "{{ (7**300000000) % 3 }}",
    "{% autoescape 7**300000000 %}{% endautoescape %}",
    looping("{% set ns.x = ns.x * ns.x %}", "7"),
    '{{ "a" * 4000000000 }}',
    "{{ (4000000000 * [1])|length }}",
    '{{ "%1000000000d" % 1 }}',
    '{{ "%*d" % (1000000000, 1) }}',
    '{{ "%1000000000d"|format(1) }}',
    '{{ "{:1000000000}".format(1) }}',
    '{{ "{:{w}}".format(1, w=1000000000) }}',
    '{{ ("%s" * 30000) % ((("a" * 1000000),) * 30000) }}',
    '{{ "a".ljust(1000000000) }}',
    '{{ ("a"|attr("zfill"))(1000000000) }}',
    "{{ (5).to_bytes(4000000000, 'big')|length }}",
    '{{ "a"|center(1000000000) }}',
    '{{ "a"|indent(1000000000, true) }}',
    '{% autoescape "a"|indent(1000000000, true) %}{% endautoescape %}',
    "{{ 1.5|round(1000000000, 'ceil') }}",
    "{{ [1, 2]|tojson(indent=1000000000) }}",
    "{{ range(99999)|join('a' * 1000000) }}",
    "{{ ('b' * 10000000).join(['a'] * 10000000)|length }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% set x = range(99999)|sort %}{% endfor %}",
    "{% for a in range(99999) %}{% set x = range(99999)|select|list %}{% endfor %}",
    "{% for a in range(99999) %}{% set x = 0.5 in range(99999) %}{% endfor %}",
    "{% for a in range(99999) %}{% set x = 0.5 is in(range(99999)) %}{% endfor %}",
    "{% set x = 'a' * 10000000 %}{% for a in range(99999) %}{% set y = x[1:] %}{% endfor %}",
    "{% set x = 'a' * 10000000 %}{% for a in range(99999) %}{% set y = x.count('b') %}{% endfor %}",
    "{% set x = range(99999)|list %}{% for a in range(99999) %}{% set y = x.index(99998) %}{% endfor %}",
    "{% for a in range(99999) %}{% set y = range(99999).count(0.5) %}{% endfor %}",
    "{% for a in range(99999) %}{% set y = cycler(*range(99999)) %}{% endfor %}",
    "{% set x = 'A' * 10000000 %}{% for a in range(99999) %}{% set y = x is upper %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    looping("{% set ns.x = ns.x ~ ns.x %}"),
    looping("{% set ns.x = ns.x + ns.x %}"),
    looping("{% set ns.x = [ns.x, ns.x]|join %}"),
    looping("{% set ns.x = ns.x.replace('a', ns.x) %}"),
    looping("{% set ns.x = ns.x|replace('a', ns.x) %}"),
    looping("{% set ns.x = ns.x|replace(new=ns.x, old='a') %}"),
    "{{ ('%999d' * 3000000)|format(1)|length }}",
    "{{ strftime_now('%Z' * 5000000)|length }}",
    looping("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    looping("{% set ns.x = [ns.x, ns.x] %}"),
    looping("{% set ns.x = [ns.x, ns.x] %}").replace("ns.x }}", "ns }}"),
    "{{ {}.fromkeys(range(99999), 'a' * 10000000).values()|join|length }}",
    "{{ ''.join(([{'a': 'b' * 10000000}] * 10000)|map(attribute='a'))|length }}",
    "{{ ('a' * 10000000).strip('b' * 5000000 ~ 'a')|length }}",
    "{{ ('a' * 10000000)|trim('b' * 5000000 ~ 'a')|length }}",
    "{{ ('a' * 10000000).rfind('b' ~ 'a' * 5000000) }}",
    "{{ ('\u00e9' * 10000000).encode('punycode')|length }}",
    "{{ ('f' * 10000000)|int(base=16) // 7 }}",
    "{{ ('\n' * 10000000)|indent(900)|length }}",
    "{{ " + "[" * 60 + "[1] * 900000" + "]" * 60 + "|tojson(indent=900)|length }}",
    "{{ a }}" * 40_000,
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", COSTLY, ids=lambda source: source[:60])
def test_a_template_that_makes_much_of_little_is_refused(source: str) -> None:
    """At once, where it is read, and in words that name the file: without the bounds, these hold the interpreter or
    take gigabytes.

    Fault injection: turns red when an operator is not looked at before it works, when a turn of a loop spends
    nothing, or when a value is not weighed.
    """
    with pytest.raises(CorruptData, match=r"chat_template\.jinja.* cannot be"):
        compile_template(source)


def test_one_that_does_so_only_for_some_messages_ends_that_request() -> None:
    """The short conversation that it is tried with does not find it; the request's own does."""
    template = ChatTemplate("{% if messages|length > 1 %}{{ 'a' * 10**12 }}{% endif %}", {}, 100)
    assert "" == template.render([Message("user", "a")])
    with pytest.raises(InvalidRequest, match="a value of more than"):
        template.render([Message("user", "a")] * 2)


LLAMA = """{{- bos_token }}{% if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}{{- "Today Date: " + date_string + "\\n\\n" }}{{- system }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
QWEN = """{%- if tools %}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- set content = message.content %}
    {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content.replace('a', 'b')|replace('\\n', ' ')|indent(2) ~ '<|im_end|>\\n' }}
    {%- if loop.last or (loop.index0 > ns.last_query_index) %}{{- "%s of %d" % (loop.index, loop.length) }}{%- endif %}
    {%- if loop.index % 2 == 0 and message.role in ['user', 'tool'] %}{{- '{} {}'.format(loop.index0 * 2, '-' * 8) }}{%- endif %}
{%- endfor %}{{- messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ') }}"""


@pytest.mark.parametrize("source", [LLAMA, QWEN], ids=["llama", "qwen"])
def test_what_real_templates_do_comes_out_as_before(source: str) -> None:
    """Of 4,096 messages, and of eight megabytes: far within the bounds, and as in transformers."""
    for talk in (
        [Message(("user", "assistant")[i % 2], f" a\n</think>{i} ") for i in range(4096)],
        [Message("user", "a b\n" * (2 << 20))],
    ):
        rendered: Any = render_jinja_template(
            conversations=[[message._asdict() for message in talk]],
            chat_template=source,
            add_generation_prompt=True,
            bos_token="<s>",
        )
        assert rendered[0] == [ChatTemplate(source, {"bos_token": "<s>"}, 1 << 25).render(talk)]
