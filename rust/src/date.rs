//! The clock that templates see: `strftime` of one day.

/// A day, whose midnight is the time that templates see.
pub struct Date {
    year: i32,
    month: usize,
    day: usize,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl Date {
    /// Reads YYYY-MM-DD.
    pub fn parse(text: &str) -> Result<Date, String> {
        let wrong = || format!("the date \"{text}\" is not of the form YYYY-MM-DD");
        let bytes = text.as_bytes();
        if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
            return Err(wrong());
        }
        let digits = |from: usize, to: usize| -> Result<usize, String> {
            let part = text.get(from..to).ok_or_else(wrong)?;
            if !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(wrong());
            }
            part.parse().map_err(|_| wrong())
        };
        let date = Date {
            year: digits(0, 4)? as i32,
            month: digits(5, 7)?,
            day: digits(8, 10)?,
        };
        if !(1..=12).contains(&date.month)
            || !(1..=date.days_in_month(date.month)).contains(&date.day)
        {
            return Err(format!("the date \"{text}\" does not exist"));
        }
        Ok(date)
    }

    fn days_in_month(&self, month: usize) -> usize {
        let leap = (self.year % 4 == 0 && self.year % 100 != 0) || self.year % 400 == 0;
        match month {
            2 => 28 + usize::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    fn day_of_year(&self) -> usize {
        (1..self.month)
            .map(|m| self.days_in_month(m))
            .sum::<usize>()
            + self.day
    }

    /// 0 for Sunday (Sakamoto's rule).
    fn day_of_week(&self) -> usize {
        const OFFSETS: [i32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = if self.month < 3 {
            self.year - 1
        } else {
            self.year
        };
        let sum = year + year / 4 - year / 100 + year / 400;
        (sum + OFFSETS[self.month - 1] + self.day as i32).rem_euclid(7) as usize
    }

    /// `strftime` in the C locale, the time being midnight and without a zone.
    pub fn strftime(&self, format: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next().unwrap_or('%');
            let unpadded = code == '-';
            if unpadded {
                code = chars.next().unwrap_or('%');
            }
            let field = self.field(code)?;
            let bare = field.trim_start_matches('0');
            match (unpadded, bare) {
                (false, _) => out.push_str(&field),
                (true, "") => out.push('0'),
                (true, bare) => out.push_str(bare),
            }
        }
        Ok(out)
    }

    fn field(&self, code: char) -> Result<String, String> {
        let (year, month, day) = (self.year, self.month, self.day);
        let month_name = MONTHS[month - 1];
        let day_name = DAYS[self.day_of_week()];
        Ok(match code {
            'Y' => format!("{year}"),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => month_name.to_string(),
            'b' | 'h' => month_name[..3].to_string(),
            'A' => day_name.to_string(),
            'a' => day_name[..3].to_string(),
            'j' => format!("{:03}", self.day_of_year()),
            'u' => format!("{}", (self.day_of_week() + 6) % 7 + 1),
            'w' => format!("{}", self.day_of_week()),
            'H' | 'M' | 'S' => "00".to_string(),
            'I' => "12".to_string(),
            'f' => "000000".to_string(),
            'p' => "AM".to_string(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'D' | 'x' => format!("{month:02}/{day:02}/{:02}", year % 100),
            'T' | 'X' => "00:00:00".to_string(),
            'R' => "00:00".to_string(),
            'c' => format!(
                "{} {} {day:2} 00:00:00 {year}",
                &day_name[..3],
                &month_name[..3]
            ),
            'Z' | 'z' => String::new(),
            'n' => "\n".to_string(),
            't' => "\t".to_string(),
            '%' => "%".to_string(),
            other => return Err(format!("strftime_now: %{other} is not supported")),
        })
    }
}
