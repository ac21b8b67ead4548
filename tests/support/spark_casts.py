"""How Spark's own casts read values: the slow reference of `narrowcast.tables.values`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType as SparkType

#: How much of a value a reason shows.
SHOWN = 60

#: A time of day alone would be read as a time of today.
_HAS_DATE = r"^\s*[+-]?\d{4,7}(-|\s*$)"
#: A date and nothing behind it: Spark itself passes over what follows a blank.
_DAY = r"^\s*[+-]?\d{4,7}(-\d{1,2}){0,2}\s*$"
#: A number with a power of ten.
_POWER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+\s*$"


def is_nested(kind: SparkType) -> bool:
    """Return whether a type is made of others."""
    from pyspark.sql import types as st

    return isinstance(kind, st.StructType | st.ArrayType | st.MapType)


def shown(value: Column, kind: SparkType) -> Column:
    """Return a value as a reason shows it: quoted unless it is a number, and not too long."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    text = sf.to_json(sf.struct(value)) if is_nested(kind) else value.cast("string")
    cut = sf.when(sf.length(text) > SHOWN, sf.concat(sf.left(text, sf.lit(SHOWN)), sf.lit("..."))).otherwise(
        text
    )
    return cut if isinstance(kind, st.NumericType) else sf.concat(sf.lit("'"), cut, sf.lit("'"))


def whole(value: Column, found: SparkType, name: str) -> tuple[Column, Column | None]:
    """Return a value as an integer of 64 bits, and the reason against it: null where it is one.

    A number with a point is fine when nothing stands behind it, and one of floating point up to where it
    still tells neighbours apart.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    if isinstance(found, st.IntegralType):
        return value.cast("bigint"), None
    if isinstance(found, st.FractionalType):
        cast = _unbroken(value, found, st.LongType())
        if not isinstance(found, st.DecimalType):
            exact = 2.0**24 if isinstance(found, st.FloatType) else 2.0**53
            cast = sf.when(sf.abs(value) <= exact, cast)
    else:
        text = value.cast("string")
        plain = sf.when(text.rlike(r"^\s*[+-]?\d+\s*$"), text.try_cast("bigint"))
        cast = sf.coalesce(plain, _without_point(text).try_cast("bigint"))
    reason = sf.concat(sf.lit(f"{name} "), shown(value, found), sf.lit(" is not a 64-bit integer"))
    return cast, sf.when(value.isNotNull() & cast.isNull(), reason)


def fit(value: Column, found: SparkType, wanted: SparkType, name: str) -> tuple[Column, Column | None]:
    """Return a value in the type that is wanted, and the reason against it: null where it fits.

    Values are cast as Spark casts them, but nothing is lost in silence: what does not fit is no null, a
    number with a fraction fits no integer type, one with more digits no decimal, and a time with a zone
    means what it means in UTC. An object of JSON in a text fits a struct.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    if _same(found, wanted):
        return value, None
    no = sf.concat(
        sf.lit(f"{name} "),
        shown(value, found),
        sf.lit(
            f" is not a valid {wanted.typeName() if is_nested(wanted) else wanted.simpleString()}"
            "; give another value"
        ),
    )
    if isinstance(wanted, st.StructType) and (isinstance(found, st.StructType) or _is_text(found)):
        parts, reasons = [], []
        there = value
        if _is_text(found):
            there = sf.from_json(sf.when(sf.ltrim(value).startswith("{"), value), "map<string,string>")
            reasons.append(sf.when(value.isNotNull() & there.isNull(), no))
        for part in wanted.fields:
            below = f"{name}.{part.name}"
            if isinstance(found, st.StructType):
                inner, kind = value.getField(part.name), found[part.name].dataType
            else:
                inner, kind, twice = _spelled(there, part.name, below)
                reasons.append(twice)
            cast, reason = fit(inner, kind, part.dataType, below)
            parts.append(cast.alias(part.name))
            reasons += [] if reason is None else [reason]
        return sf.when(there.isNotNull(), sf.struct(*parts)), sf.coalesce(*reasons) if reasons else None
    cast = _cast(value, found, wanted)
    return cast, sf.when(value.isNotNull() & cast.isNull(), no)


def _spelled(fields: Column, name: str, path: str) -> tuple[Column, SparkType, Column]:
    """Return the field of an object however it is spelled, as text, and the reason against two of them."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    same = sf.map_filter(fields, lambda key, _: sf.lower(key) == name.lower())
    said = f"{path} occurs in several spellings: names ignore case; rename one"
    return sf.get(sf.map_values(same), sf.lit(0)), st.StringType(), sf.when(sf.size(same) > 1, sf.lit(said))


def _is_text(kind: SparkType) -> bool:
    """Return whether a type is one of Spark's for text."""
    from pyspark.sql import types as st

    return isinstance(kind, st.StringType | st.CharType | st.VarcharType)


def _same(one: SparkType, other: SparkType) -> bool:
    """Return whether two types hold the same values, wherever nulls may be."""
    return one.simpleString() == other.simpleString()


def castable(found: SparkType, wanted: SparkType) -> bool:
    """Return whether Spark knows a way from one type to another; asked, it would write to its log.

    Examples
    --------
    >>> from pyspark.sql import types as st
    >>> castable(st.DateType(), st.TimestampType()), castable(st.DateType(), st.LongType())
    (True, False)
    """
    from pyspark.sql import types as st

    if is_nested(found) or is_nested(wanted):
        return False
    if _is_text(found) or _is_text(wanted) or isinstance(found, st.NullType | st.VariantType):
        return True
    ways: list[tuple[type[SparkType], tuple[type[SparkType], ...]]] = [
        (st.NumericType, (st.NumericType, st.BooleanType, st.TimestampType)),
        (st.BooleanType, (st.BooleanType, st.NumericType)),
        (st.DateType, (st.DateType, st.TimestampType, st.TimestampNTZType)),
        (st.TimestampType, (st.TimestampType, st.DateType, st.TimestampNTZType, st.NumericType)),
        (st.TimestampNTZType, (st.TimestampNTZType, st.DateType, st.TimestampType)),
    ]
    return any(isinstance(found, kind) and isinstance(wanted, to) for kind, to in ways)


def _cast(value: Column, found: SparkType, wanted: SparkType) -> Column:
    """Return a value cast to a type, null where that cannot be or would lose something."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    if is_nested(found) and isinstance(wanted, st.StringType):
        return sf.to_json(value)
    if not castable(found, wanted):
        return sf.lit(None).cast(wanted)
    cast = value.try_cast(wanted)
    if isinstance(found, st.FractionalType) and isinstance(wanted, st.IntegralType | st.DecimalType):
        return _unbroken(value, found, wanted)
    if not _is_text(found):
        return cast
    if isinstance(wanted, st.IntegralType):
        return sf.coalesce(cast, _without_point(value).try_cast(wanted))
    if isinstance(wanted, st.DecimalType):
        plain = value.rlike(rf"^\s*[+-]?\d*(\.\d{{0,{wanted.scale}}}0*)?\s*$")
        power = value.rlike(_POWER) & (cast.cast("double") == value.try_cast("double"))
        return sf.when(plain | power, cast)
    if isinstance(wanted, st.DateType):
        time = sf.when(value.rlike(_HAS_DATE), value.try_cast("timestamp"))
        return sf.when(value.rlike(_DAY), cast).otherwise(time.cast(wanted))
    if isinstance(wanted, st.TimestampNTZType):  # Spark itself would leave the zone out
        return sf.when(value.rlike(_HAS_DATE), value.try_cast("timestamp").cast(wanted))
    if isinstance(wanted, st.TimestampType):
        return sf.when(value.rlike(_HAS_DATE), cast)
    return cast


def _unbroken(value: Column, found: SparkType, wanted: SparkType) -> Column:
    """Return a number in another type, null where digits would be lost."""
    from pyspark.sql import functions as sf

    cast = value.try_cast(wanted)
    return sf.when(cast.try_cast(found) == value, cast)


def _without_point(text: Column) -> Column:
    """Return a whole number that is written with a point or a power of ten as digits, null for all else."""
    from pyspark.sql import functions as sf

    number = text.try_cast("double")
    power = text.rlike(_POWER) & (sf.abs(number) <= 2.0**53) & (sf.rint(number) == number)
    return sf.when(text.rlike(r"^\s*[+-]?\d+\.0*\s*$"), sf.regexp_replace(text, r"\.0*\s*$", "")).when(
        power, number.try_cast("bigint").cast("string")
    )
