"""Subjects closed to a subscriber called ann, where bob is another subscriber."""

from __future__ import annotations

#: Subjects that she may not listen to: bob's, those of nodes, and patterns that match any of these.
CLOSED = (
    ">", "*", "nc.>", "*.>", "nc.*", "nc.out.>", "nc.out.*", "nc.out.to.*", "nc.out.to.>", "nc.out.to.bob",
    "nc.out.channel.>", "nc.out.channel.1.*", "nc.out.channel.1.2", "nc.out.channel.2.1", "nc.control.bob",
    "nc.control.*", "nc.control.>", "nc.answer.>", "nc.answer.*.x", "nc.answer.bob.>", "nc.replay.bob.>",
    "nc.replay.>", "nc.ask.ann", "nc.ask.*", "nc.in.>", "nc.in", "nc.orders", "nc.changes", "nc.keep.>",
    "nc.at.>", "$JS.>", "$JS.API.>", "$JS.ACK.>", "$SYS.>", "_INBOX.>", "$JS.ACK.nc_out.ann.>",
)  # fmt: skip
#: Subjects that she may not publish to.
MUTE = (
    "nc.out.to.ann", "nc.out.to.bob", "nc.out.all", "nc.out.channel.1.1", "nc.control.ann", "nc.control.bob",
    "nc.changes", "nc.orders", "nc.ask.bob", "nc.beats", "nc.answer.bob.x", "nc.in", "nc.in.3.ann",
    "nc.at.position.x.bob", "nc.at.joined.x.ann", "nc.at.restored.x.ann", "nc.at.store.x", "nc.keep.to.bob",
    "nc.replay.bob.x", "$JS.API.INFO", "$JS.API.STREAM.DELETE.nc_out", "$JS.ACK.nc_out.bob.1.1.1.1.1",
    "$SYS.REQ.SERVER.PING", "_INBOX.x.y",
)  # fmt: skip
