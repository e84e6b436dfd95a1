// Prints what DuckDB sees in a parquet file as JSON: its schema, its key/value
// metadata, the compression of its columns, and its rows with every value as
// text (bytes in hexadecimal, times as microseconds).
//
//     node read.mjs FILE
import { DuckDBInstance } from "@duckdb/node-api";

const file = "'" + process.argv[2].replaceAll("'", "''") + "'";
const instance = await DuckDBInstance.create(":memory:", { threads: "1" });
const connection = await instance.connect();
const query = async (sql) => (await connection.runAndReadAll(sql)).getRowObjectsJson();

const columns = await query(`DESCRIBE SELECT * FROM read_parquet(${file})`);
const texts = columns.map(({ column_name: name, column_type: type }) => {
  const quoted = `"${name}"`;
  if (type === "BLOB") return `lower(hex(${quoted})) AS ${quoted}`;
  if (type.startsWith("TIMESTAMP")) return `epoch_us(${quoted})::VARCHAR AS ${quoted}`;
  return `${quoted}::VARCHAR AS ${quoted}`;
});
console.log(
  JSON.stringify({
    schema: await query(`SELECT name, type, repetition_type, num_children, converted_type, logical_type FROM parquet_schema(${file})`),
    columns,
    metadata: await query(`SELECT decode(key) AS key, decode(value) AS value FROM parquet_kv_metadata(${file})`),
    compression: await query(`SELECT DISTINCT compression FROM parquet_metadata(${file})`),
    rows: await query(`SELECT ${texts.join(", ")} FROM read_parquet(${file})`),
  }),
);
