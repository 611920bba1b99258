//! Parquet files as JSON lines.

use std::fs::File;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Number, Value};

/// The rows of the file at `path`, in order, each a JSON object on a line of its own.
///
/// Byte arrays without a type are text in files of older writers; where they are not UTF-8 there is no
/// honest JSON for them, and the column is refused, as is a number that JSON cannot hold.
pub fn to_jsonl(path: &str) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|e| e.to_string())?;
    let reader = SerializedFileReader::new(file).map_err(|e| e.to_string())?;
    let rows = reader.get_row_iter(None).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    for (index, row) in rows.enumerate() {
        let at_row = |message: String| format!("row {}: {message}", index + 1);
        let row = row.map_err(|e| at_row(e.to_string()))?;
        let value = row_to_json(&row).map_err(at_row)?;
        serde_json::to_writer(&mut out, &value).map_err(|e| at_row(e.to_string()))?;
        out.push(b'\n');
    }
    Ok(out)
}

fn row_to_json(row: &Row) -> Result<Value, String> {
    let mut object = Map::new();
    for (name, field) in row.get_column_iter() {
        let value =
            field_to_json(field).map_err(|message| format!("column {name:?}: {message}"))?;
        object.insert(name.clone(), value);
    }
    Ok(Value::Object(object))
}

fn field_to_json(field: &Field) -> Result<Value, String> {
    match field {
        Field::Group(row) => row_to_json(row),
        Field::ListInternal(list) => list
            .elements()
            .iter()
            .map(field_to_json)
            .collect::<Result<_, _>>()
            .map(Value::Array),
        Field::MapInternal(map) => {
            let mut object = Map::new();
            for (key, value) in map.entries() {
                let key = match field_to_json(key)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                object.insert(key, field_to_json(value)?);
            }
            Ok(Value::Object(object))
        }
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data())
            .map(|text| Value::String(text.to_string()))
            .map_err(|_| "binary values that are not UTF-8 text are not supported".to_string()),
        Field::Float16(x) => number(f64::from(*x)),
        Field::Float(x) => number(f64::from(*x)),
        Field::Double(x) => number(*x),
        other => Ok(other.to_json_value()),
    }
}

fn number(x: f64) -> Result<Value, String> {
    Number::from_f64(x)
        .map(Value::Number)
        .ok_or_else(|| format!("the number {x} is not finite"))
}
